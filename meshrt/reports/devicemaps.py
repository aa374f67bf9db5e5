"""The file of a run's maps (`--maps FILE.npz`) on machines without a mesh: what each device did, and its link.

As of the mesh (meshrt/mesh/look/mapfile.py), but arrays are [1, devices]: PART/MAP, of the whole run (`total`) and,
where they are kept by device, of its phases. `about` is a JSON text that lists all.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from meshrt.errors import UsageError
from meshrt.ranks.files import check_target, write_file

IDLE = ("1", "the part of the time, 0 to 1, in which each was not busy", "")


class DeviceStretch(NamedTuple):
    """Of the run or a phase: virtual seconds, whether a part of it stood for others, a number for each device."""

    seconds: float
    extrapolated: bool
    numbers: Mapping[str, Sequence[float]]


def check_maps(path: str) -> None:
    """UsageError where maps cannot be written there."""
    check_target("--maps", path)
    if not path.endswith(".npz"):
        raise UsageError(f"--maps {path}: the name ends with .npz")


def unique(names: Sequence[str]) -> list[str]:
    """The names in order; the second of a kind is 'name 2', or the next number that is no name of another."""
    others, apart = set(names), dict[str, None]()
    for name in names:
        free = name if name not in apart else None
        free = free or next(new for at in count(2) if (new := f"{name} {at}") not in others and new not in apart)
        apart[free] = None
    return list(apart)


def write_device_maps(
    path: str, noun: str, device: str, limits: Mapping[str, int | None], maps: Mapping[str, tuple[str, str, str]],
    stretches: Sequence[tuple[str, DeviceStretch]],
) -> None:  # fmt: skip
    """Write the maps at rank 0. `noun`: what a device is called; `maps`: unit, what it is, the counter that it adds up
    to, by name; a stretch that has no numbers of a map leaves it out. `idle` is made of `busy`, where that is there.
    """
    names = unique(["total", *(name for name, _ in stretches[1:])])
    parts = dict(zip(names, (stretch for _, stretch in stretches), strict=True))
    arrays: dict[str, Any] = {}
    for part, stretch in parts.items():
        numbers = {name: np.array([stretch.numbers[name]]) for name in maps if name in stretch.numbers}
        if "busy" in numbers:
            busy = numbers["busy"].astype(float)
            numbers["idle"] = 1 - busy / stretch.seconds if stretch.seconds else np.zeros_like(busy)
        arrays |= {f"{part}/{name}": array for name, array in numbers.items()}
    every = {**maps, "idle": IDLE} if "busy" in maps else maps
    about = {
        "schema": 1,
        "one": noun,
        "mesh": [len(stretches[0][1].numbers[next(iter(maps))]), 1],
        "device": device,
        "limits": limits,
        "parts": {name: {"seconds": part.seconds, "extrapolated": part.extrapolated} for name, part in parts.items()},
        "sites": [f"{noun}s"],
        "maps": {name: {"unit": unit, "says": says, "adds_up_to": to} for name, (unit, says, to) in every.items()},
    }
    whole = {"about": np.array(json.dumps(about)), **arrays}
    write_file("--maps", path, lambda stream: np.savez_compressed(stream, **whole))
