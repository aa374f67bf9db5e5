"""The file of a run's maps (`run --maps FILE.npz`), read; and what of it a picture shows: a number for each core."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from meshrt.errors import UsageError, nearest

# What can be looked at: the map that has it. Of links, what a core's busiest link out of it has.
WHAT = {
    "links": "link_bytes",
    "packets": "link_packets",
    "memory": "memory",
    "entries": "entries",
    "idle": "idle",
    "busy": "busy",
    "messages": "messages",
    "stages": "stages",
    "macs": "macs",
}


@dataclass(frozen=True, eq=False)
class RunMaps:
    """`about` as meshrt/mesh/mapfile.py describes it; `arrays` by PART/MAP, or PART/SITE/MAP of further sites."""

    about: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    def array(self, part: str, name: str, site: str | None = None) -> np.ndarray:
        """A map of a part of the run (total or a phase) at a site. UsageError for a part or a site that is none."""
        parts, sites = [*self.about["parts"]], self.about["sites"]
        if part not in parts:
            raise UsageError(f"no phase {part!r}: {nearest(part, parts, 'there are ' + ', '.join(parts))}")
        if site is not None and site not in sites:
            raise UsageError(f"no site {site!r}: there are {', '.join(sites)}")
        further = "" if site in (None, sites[0]) else f"{site}/"
        return self.arrays[f"{part}/{further}{name}"]


@dataclass(frozen=True, eq=False)
class Picture:
    """A number for each core, [H, W]; `limit` is what it may be, where the machine has a limit."""

    title: str
    unit: str
    values: np.ndarray
    limit: float | None = None

    def at(self, extreme: int) -> tuple[int, int]:
        """(x, y) of the core with the number."""
        y, x = np.unravel_index(extreme, self.values.shape)
        return int(x), int(y)


def find_maps(path: str) -> Path:
    """The file itself, or that of the same name beside a report: run.json, run.npz. UsageError."""
    file = Path(path)
    if file.suffix == ".npz":
        return file
    beside = file.with_suffix(".npz")
    if not beside.is_file():
        raise UsageError(f"{path} has no maps: there is no {beside} beside it; write them with `run --maps {beside}`")
    return beside


def read_maps(path: str) -> RunMaps:
    """UsageError where it is no file of maps."""
    file = find_maps(path)
    try:
        with file.open("rb") as stream:
            stored = np.load(stream, allow_pickle=False)
            arrays = {name: stored[name] for name in stored.files}
        return RunMaps(json.loads(str(arrays.pop("about"))), arrays)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, EOFError, AttributeError, BadZipFile) as error:
        raise UsageError(f"{file} is no file that `meshrt run --maps {file}` wrote: {error}") from error


def picture(maps: RunMaps, what: str, part: str = "total", site: str | None = None) -> Picture:
    """UsageError as `RunMaps.array`."""
    name = WHAT[what]
    values = maps.array(part, name, site)
    facts = maps.about["maps"][name]
    says = facts["says"]
    if values.ndim == 3:
        values, says = values.max(axis=0), f"{says} out of a core, the busiest of them"
    limit = maps.about["limits"].get(name)
    where = "the whole run" if part == "total" else part
    unit = "" if facts["unit"] == "1" else facts["unit"]
    place = "" if site is None else f", {site}"
    return Picture(f"{what}, {where}{place}: {unit} {says}".replace(":  ", ": "), unit, values, limit)
