"""How work is shared out to cores: units of it, such as panels of columns, each to one core."""

from collections.abc import Sequence


def equal(units: int, cores: int) -> list[Sequence[int]]:
    """As even as it goes, in order; the first cores have one more."""
    small, more = divmod(units, cores)
    begins = [core * small + min(core, more) for core in range(cores + 1)]
    return [range(*begins[core : core + 2]) for core in range(cores)]
