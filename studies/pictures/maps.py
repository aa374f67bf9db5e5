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
    "flops": "flops",
    "traffic": "memory_traffic",
    "launches": "launches",
    "collective": "collective",
    "read": "hbm_read",
    "written": "hbm_written",
    "sbuf": "sbuf",
    "psum": "psum",
    "saved": "spill_saved",
    "reloaded": "spill_reloaded",
    "instructions": "instructions",
    "operations": "operations",
    "l1": "l1_bytes",
    "l2": "l2_bytes",
    "slc": "slc_bytes",
}
# And who sent how much to whom: a row for each sender, a column for each receiver.
PAIRS = {"pairs": "bytes of packets from each core (down) to each (across)",
         "carried": "bytes that exchanges carried from each core (down) to each (across)"}  # fmt: skip
SHOWN = (*WHAT, *PAIRS)
MOST = 1024  # senders, and receivers, of a picture: of more, those that follow each other are added up


@dataclass(frozen=True, eq=False)
class RunMaps:
    """`about` as meshrt/mesh/look/mapfile.py describes it; `arrays` by PART/MAP, or PART/SITE/MAP of further sites."""

    about: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    @property
    def one(self) -> str:
        """What a cell is: a core of a mesh, or a device."""
        return str(self.about.get("one", "core"))

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
    """A number for each core, [H, W]; `limit` is what it may be, where the machine has a limit.

    Or for each two: [senders, receivers], cores in the order of rows, `each` of them at a row and a column.
    """

    title: str
    unit: str
    values: np.ndarray
    limit: float | None = None
    each: "Each | None" = None
    one: str = "core"  # what a cell is

    def at(self, extreme: int) -> str:
        """The core with the number, (x, y), or both."""
        y, x = (int(at) for at in np.unravel_index(extreme, self.values.shape))
        if self.one != "core":
            return f"{self.one} {x}"
        return str((x, y)) if self.each is None else f"{self.each.core(y)} to {self.each.core(x)}"


@dataclass(frozen=True)
class Each:
    """What a row, and a column, of a picture of pairs is: `step` squares of `side` x `side` cores, `columns` a row."""

    step: int
    columns: int
    side: int

    def core(self, number: int) -> tuple[int, int]:
        """(x, y) of its first core."""
        y, x = divmod(number * self.step, self.columns)
        return x * self.side, y * self.side


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
        about = json.loads(str(arrays.pop("about")))
        if not isinstance(about, dict) or not {"mesh", "device", "parts", "sites", "maps", "limits"} <= about.keys():
            raise ValueError("it does not say what it is about")
        return RunMaps(about, arrays)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, EOFError, AttributeError, BadZipFile) as error:
        raise UsageError(f"{file} is no file that `meshrt run --maps {file}` wrote: {error}") from error


def maps_of(report: Mapping[str, Any], path: str) -> RunMaps | None:
    """The maps that lie beside a report, the file of that path; None where none do. UsageError for those of another
    run, such as an earlier one of the same names.
    """
    file = Path(path).with_suffix(".npz")
    if not file.is_file():
        return None
    maps = read_maps(str(file))
    times = {key: value for key, value in maps.about["parts"]["total"].items() if key != "extrapolated"}
    theirs = {"mesh": maps.about["mesh"], "device": maps.about["device"], **times}
    path_here = report["measured"].get("critical_path", {})
    own = {"mesh": report["mesh"], "device": report["device"].get("name"), **{key: path_here.get(key) for key in times}}
    for key, value in own.items():
        if theirs[key] != value:
            raise UsageError(
                f"{file} has the maps of another run than {path}: {key} is {theirs[key]} there and {value} here; write"
                f" both at once, with --json {path} --maps {file}, or move {file} away"
            )
    return maps


def picture(maps: RunMaps, quantity: str, part: str = "total", site: str | None = None) -> Picture:
    """UsageError as `RunMaps.array`."""
    if quantity in PAIRS:
        return _pairs(maps, quantity, part, site)
    name = WHAT[quantity]
    if quantity not in there(maps, part):
        has = ", ".join(there(maps, part))
        raise UsageError(f"no {quantity} by {maps.one} in {_where(part, None)}: there are {has}")
    values = maps.array(part, name, site)
    facts = maps.about["maps"][name]
    says = facts["says"]
    if values.ndim == 3:
        values, says = values.max(axis=0), f"{says} out of a core, the busiest of them"
    limit = maps.about["limits"].get(name)
    unit = "" if facts["unit"] == "1" else facts["unit"]
    title = f"{quantity}, {_where(part, site)}: {unit} {says}".replace(":  ", ": ")
    return Picture(title, unit, values, limit, one=maps.one)


def there(maps: RunMaps, part: str = "total") -> list[str]:
    """What can be looked at of a part of the run. UsageError as `RunMaps.array`, for a part that is none."""
    prefix = f"{part}/"
    if part not in maps.about["parts"]:
        maps.array(part, "")
    return [quantity for quantity in SHOWN if prefix + WHAT.get(quantity, quantity) in maps.arrays]


def _where(part: str, site: str | None) -> str:
    return ("the whole run" if part == "total" else part) + ("" if site is None else f", {site}")


def _pairs(maps: RunMaps, quantity: str, part: str, site: str | None) -> Picture:
    """UsageError, also for a file of a version that kept no pairs."""
    if "one" in maps.about:
        raise UsageError(f"no {quantity}: who sent to whom is kept on the mesh; there are {', '.join(there(maps))}")
    if "pairs" not in maps.about:
        raise UsageError("these maps were written by a version that did not keep who sent to whom: run it once more")
    senders, receivers, nbytes, _ = maps.array(part, quantity, site).T
    squares = maps.about["pairs"]["sites"][site or maps.about["sites"][0]]
    count = squares["columns"] * squares["rows"]
    each = Each(-(-count // MOST), squares["columns"], squares["side"])
    values = np.zeros((-(-count // each.step),) * 2, np.int64)
    np.add.at(values, (senders // each.step, receivers // each.step), nbytes)
    cores = each.step * each.side**2
    together = f"; {cores} cores are added up" if cores > 1 else ""
    title = f"{quantity}, {_where(part, site)}: {PAIRS[quantity]}, row by row{together}"
    return Picture(title, "bytes", values, each=each)
