"""Layers that are alike: by shape, one runs and is counted for those after it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from meshrt.arm.soc import Soc, sums


@contextmanager
def repeated(soc: Soc, times: int) -> Iterator[None]:
    """What is done inside is counted, and takes its time, so many `times` more. For runs without payload."""
    if not times:
        yield
        return
    before = [(Counter(core.instructions), Counter(core.counts)) for core in soc.mine]
    system = sums(soc.system)
    yield
    soc.sampled = True
    for core, (instructions, counts) in zip(soc.mine, before, strict=True):
        for total, old in ((core.instructions, instructions), (core.counts, counts)):
            total.update({name: times * (count - old[name]) for name, count in total.items()})
    now = soc.system["seconds"]
    for name, count in soc.system.items():
        soc.system[name] = count + times * (count - system[name])
    soc.note("work", "layers that are like the last", now, soc.system["seconds"])
