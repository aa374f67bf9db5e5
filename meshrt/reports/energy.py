"""Joules: what a machine counted, times what a device's numbers say that each takes, from the lowest to the highest.

What takes energy and was not counted (instructions and caches of a GPU, a chip's clock tree) is in what a device takes
always, or nowhere. A number that a device does not have costs nothing; a device without any has no energy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from meshrt.errors import UsageError
from meshrt.reports.kinds import TableRow, row_of
from meshrt.units import joules

Range = tuple[float, float]  # the lowest and the highest that sources give
Counts = Mapping[str, float]  # of a stretch: what took energy, by name; `seconds`, and `devices` that were there
PowerLoads = Mapping[str, Sequence[tuple[float, Range | None]]]  # by what took it: so many, at joules each

PICO = 1e-12


def check_range(device: str, name: str, value: Range | None) -> None:
    """UsageError where a number that a device has is no range."""
    if value is None:
        return
    if len(value) != 2 or not all(isfinite(bound) and bound >= 0 for bound in value) or value[0] > value[1]:
        raise UsageError(f"device {device}: {name} is {list(value)}; it is the lowest and the highest, 0 or more")


def account(
    whole: Counts, phases: Sequence[Counts], loads: Callable[[Counts], PowerLoads]
) -> tuple[dict[str, float], list[dict[str, float]]] | None:
    """The joules of a run and of its phases: those of the run are the sum of its phases', one after the other, and of
    what was done outside of them. None where the device has no numbers.
    """
    if all(price is None for load in loads(whole).values() for _, price in load):
        return None
    joules = [_joules(loads(counts)) for counts in (*phases, _rest(whole, phases))]
    total = {name: sum(part[name] for part in joules) for name in joules[0]}
    return total, joules[:-1]


def _rest(whole: Counts, phases: Sequence[Counts]) -> Counts:
    """What no phase has. Clocks are rounded: what is left of them below a billionth is nothing."""
    rest = {}
    for name, count in whole.items():
        left = count - sum(phase[name] for phase in phases)
        rest[name] = left if left > 1e-9 * count else 0
    return rest | {"devices": whole["devices"]}


def _joules(loads: PowerLoads) -> dict[str, float]:
    """Of a stretch: `low`, `mean`, `high`, and each part of the mean, which is halfway."""
    low, high = (sum(count * price[at] for count, price in _priced(loads)) for at in (0, 1))
    parts = {
        part: sum(count * (price[0] + price[1]) / 2 for count, price in _priced({part: load}))
        for part, load in loads.items()
    }
    return {"low": low, "mean": sum(parts.values()), "high": high, **parts}


def _priced(loads: PowerLoads) -> Iterator[tuple[float, Range]]:
    for load in loads.values():
        for count, price in load:
            if price is not None:
                yield count, price


def with_energy(
    measured: dict[str, Any], phases: Sequence[dict[str, Any]], count: Callable[[Mapping[str, Any]], Counts],
    loads: Callable[[Counts], PowerLoads],
) -> None:  # fmt: skip
    """Enter `energy` in what was measured of a run and of its phases."""
    energies = account(count(measured), [count(phase) for phase in phases], loads)
    if energies is not None:
        measured["energy"], of_phases = energies
        for phase, joules in zip(phases, of_phases, strict=True):
            phase["energy"] = joules


def energy_row(machine: str, report: Mapping[str, Any]) -> Iterator[TableRow]:
    """The row of a printed table, where the device has numbers."""
    if "energy" in report["measured"]:
        cells = [joules(part["energy"]["mean"]) for part in (*report["phases"], report["measured"])]
        yield row_of(machine, report, "energy.mean", cells)
