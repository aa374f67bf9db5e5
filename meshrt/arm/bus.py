"""The bus to DRAM: cores that draw at the same time share it, max-min fair, in fluid time."""

from collections.abc import Sequence


def fair(demands: Sequence[float], total: float) -> list[float]:
    """Rates: as equal as they can be where nobody gets more than it demands, nor all together more than `total`."""
    rates = [0.0 for _ in demands]
    left, waiting = total, sorted(range(len(demands)), key=lambda at: (demands[at], at))
    while waiting:
        share = left / len(waiting)
        at = waiting.pop(0)
        rates[at] = min(demands[at], share)
        left -= rates[at]
    return rates


def ends(seconds: Sequence[float], nbytes: Sequence[float], caps: Sequence[float], total: float) -> list[float]:
    """When each core is done that computes so long and needs so many bytes meanwhile.

    It draws at its own `cap` at most, and no faster than it computes; of the bus, `total`, it gets a fair share. Who
    is done leaves its share to the others. All in the order of the cores, so the same on every rank.
    """
    demands = [
        0.0 if not size else min(cap, size / busy) if busy else cap
        for busy, size, cap in zip(seconds, nbytes, caps, strict=True)
    ]
    done = [busy if not size else 0.0 for busy, size in zip(seconds, nbytes, strict=True)]
    left = {at: float(size) for at, size in enumerate(nbytes) if size}
    now = 0.0
    while left:
        rates = dict(zip(left, fair([demands[at] for at in left], total), strict=True))
        step = min(left[at] / rates[at] for at in left)
        now += step
        over = [at for at in left if left[at] / rates[at] <= step]
        left = {at: max(size - rates[at] * step, 0.0) for at, size in left.items() if at not in over}
        for at in over:
            done[at] = max(now, seconds[at])
    return done
