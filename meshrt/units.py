"""Numbers as a person reads them, in tables and messages."""

from math import inf
from typing import Any


def counted(count: int, name: str) -> str:
    """'1 GPU', '2 GPUs'."""
    return f"{count:,} {name}{'s' * (count != 1)}"


def of(limit: Any) -> str:
    """' of LIMIT' where there is one."""
    return "" if limit is None else f" of {limit}"


def short(count: int) -> str:
    """A count for a person: 1,234, then 12.3 M and so on."""
    for unit, scale in (("T", 10**12), ("G", 10**9), ("M", 10**6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:,}"


def rate(per_second: float) -> str:
    """Operations a second for a person: 12.3 G and so on, in decimal units."""
    if per_second == inf:
        return "no limit"
    for unit, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if per_second >= scale:
            return f"{per_second / scale:.4g} {unit}"
    return f"{per_second:.4g}"


def joules(energy: float) -> str:
    """Joules for a person: 12.3 mJ and so on."""
    for unit, scale in (("J", 1.0), ("mJ", 1e-3), ("uJ", 1e-6)):
        if energy >= scale:
            return f"{energy / scale:,.3g} {unit}" if energy < 1000 * scale else f"{energy / scale:,.0f} {unit}"
    return f"{energy / 1e-9:.3g} nJ"


def size(nbytes: int) -> str:
    """Bytes for a person, in binary units."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"


def duration(seconds: float) -> str:
    """As a person says it."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
