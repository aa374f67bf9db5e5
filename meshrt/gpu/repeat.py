"""Layers that are alike: by shape, one runs and is counted for those after it."""

from meshrt.gpu.gpus import Gpus
from meshrt.gpu.meter import NUMBERS


class Repeat:
    """What happens between `begin` and `end` is counted, and takes its time, `times` more. For runs without payload."""

    def __init__(self, gpus: Gpus, times: int) -> None:
        self.gpus, self.times = gpus, times
        self.before: list[tuple[float, float, dict[str, float], dict[str, int], dict[str, tuple[int, int, int]]]] = []

    def begin(self) -> None:
        self.before = [
            (
                gpu.now,
                gpu.host_clock,
                {name: getattr(gpu.counters, name) for name in NUMBERS},
                dict(gpu.counters.tally),
                {kind: (counted.calls, counted.bytes, counted.between) for kind, counted in traffic.items()},
            )
            for gpu, traffic in zip(self.gpus.mine, self.gpus.traffic, strict=True)
        ]

    def end(self) -> None:
        self.gpus.sampled = True
        for gpu, traffic, (now, host, numbers, tally, sent) in zip(
            self.gpus.mine, self.gpus.traffic, self.before, strict=True
        ):
            gpu.now += self.times * (gpu.now - now)
            gpu.host_clock += self.times * (gpu.host_clock - host)
            for name, old in numbers.items():
                count = getattr(gpu.counters, name)
                setattr(gpu.counters, name, count + self.times * (count - old))
            for name, count in gpu.counters.tally.items():
                gpu.counters.tally[name] = count + self.times * (count - tally.get(name, 0))
            for kind, counted in traffic.items():
                calls, nbytes, between = sent.get(kind, (0, 0, 0))
                counted.calls += self.times * (counted.calls - calls)
                counted.bytes += self.times * (counted.bytes - nbytes)
                counted.between += self.times * (counted.between - between)
