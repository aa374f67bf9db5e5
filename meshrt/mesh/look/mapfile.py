"""The file of a run's maps (`--maps FILE.npz`): what each core and link did, of the whole run and of each phase.

Arrays are [H, W] by core, y first, and [4, H, W] by link: that out of the core to the north, east, south, west; of
ramps [2, H, W]: out of the core, and into it. Each
is named PART/MAP, as `total/macs` or `prefill/link_bytes`; of further sites of a run on the wafer PART/SITE/MAP.
Who sent to whom are lists, int64 [pairs, 4]: sender, receiver, bytes, packets of every two cores or squares that had
any, in that order (pairs.py). `about` is a JSON text that lists all.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.look.maps import NAMES, new_maps, total
from meshrt.mesh.look.pairs import Pairs, handed_on, merged, side_of
from meshrt.mesh.mesh import PORT_NAMES, Mesh, tile_ranks
from meshrt.mesh.meter import Segment
from meshrt.ranks.files import write_file
from meshrt.reports.devicemaps import unique

# What a map shows, its unit, and the counter that it adds up to ("sum") or has as its largest number ("max").
MAPS = {
    "link_bytes": ("bytes", "over each link", "sum link_bytes.total, max link_bytes.max"),
    "ramp_bytes": ("bytes", "out of each core to its router, and in", "sum ramp_bytes.total, max ramp_bytes.max"),
    "link_packets": ("packets", "over each link", "sum hops"),
    "link_busy": ("cycles", "for which packets kept each link busy", ""),
    "messages": ("packets", "that each core sent", "sum messages"),
    "stages": ("stages", "times that software at each core touched a packet", "sum stages"),
    "macs": ("MACs", "of each core", "sum macs"),
    "rebuilt": ("numbers", "that each core made from codes", "sum rebuilt"),
    "busy": ("cycles", "in which each core computed, or its software touched a packet", ""),
    "idle": ("1", "the part of the time, 0 to 1, in which each core was not busy", ""),
    "used": ("cores", "1 where the time of a core went on", "sum cores_used"),
    "memory": ("bytes", "the most that each core held", "max memory_bytes.max"),
    "entries": ("entries", "the most that each router's table held", "max route_entries.max"),
}

PAIRS = {
    "pairs": "from the core whose ramp each packet left to each that took it in; a packet sent on is one of each leg",
    "carried": "by exchanges, from the core that had a tile, or asked for one, to the one that it was for",
}


def write_maps(block: Block, segments: Sequence[Segment], path: str) -> None:
    """Gather the maps of all ranks and write them, after the end of a run. All ranks call it; rank 0 writes."""
    named = [segment for segment in segments if segment.name]
    names = unique(["total", *(segment.name for segment in named)])
    parts = dict(zip(names, [segments, *([segment] for segment in named)], strict=True))
    site_keys = block.control.allreduce({site for segment in segments for site in _sites(segment)}, _union)
    sites = [block.site_key, *sorted(site_keys - {block.site_key})]
    arrays: dict[str, Any] = {}
    for part, its in parts.items():
        for site in sites:
            prefix = f"{part}/" if site == sites[0] else f"{part}/{site}/"
            cycles = its[-1].end[0] - its[0].begin[0]
            arrays |= {prefix + name: array for name, array in _whole(block, its, site, cycles).items()}
    if block.control.rank == 0:
        about = {
            "schema": 1,
            "mesh": [block.mesh.width, block.mesh.height],
            "device": block.device.name,
            "limits": {"memory": block.device.core_memory, "entries": block.device.route_entries},
            "parts": {part: {"cycles": its[-1].end[0] - its[0].begin[0], "extrapolated": any(s.sampled for s in its)}
                      for part, its in parts.items()},
            "sites": [site.strip() for site in sites],
            "ports": PORT_NAMES[:4],
            "maps": {name: {"unit": unit, "says": says, "adds_up_to": counter}
                     for name, (unit, says, counter) in MAPS.items()},
            "pairs": {"columns": ["sender", "receiver", "bytes", "packets"], "lists": PAIRS,
                      "sites": {site.strip(): _squares(site) for site in sites}},
        }  # fmt: skip
        arrays = {"about": np.array(json.dumps(about)), **arrays}
        write_file("--maps", path, lambda stream: np.savez_compressed(stream, **arrays))


def _sites(segment: Segment) -> set[str]:
    counters = segment.counters
    return {*counters.links, *counters.used, *counters.maps, *counters.peaks}


def _union(sets: list[set[str]]) -> set[str]:
    return set().union(*sets)


def _whole(block: Block, segments: Sequence[Segment], site: str, cycles: float) -> dict[str, np.ndarray]:
    """The maps of some segments at one site, of the whole mesh at rank 0; none at the others."""
    shares = block.control.gather(_share(block, segments, site))
    if shares is None:
        return {}
    mesh = _mesh_of(site, block, 0)
    whole: dict[str, np.ndarray] = {}
    for rank, (arrays, *_) in enumerate(shares):
        part = _mesh_of(site, block, rank)
        rows, columns = slice(part.y0, part.y0 + part.block_height), slice(part.x0, part.x0 + part.block_width)
        for name, array in arrays.items():
            at_whole = whole.setdefault(name, np.zeros((*array.shape[:-2], mesh.height, mesh.width), array.dtype))
            at_whole[..., rows, columns] = array
    whole["idle"] = 1 - whole["busy"] / cycles if cycles else np.zeros_like(whole["busy"])
    core, names = min((core, names) for peak, core, names in ((max(a["memory"].flat), c, n) for a, c, n, _ in shares)
                      if peak == whole["memory"].max())  # fmt: skip
    whole["memory_core"] = np.array(core[::-1])
    whole["memory_names"] = np.array([*names] or [""])
    whole["memory_names_bytes"] = np.array([*names.values()] or [0], np.int64)
    for at, name in enumerate(PAIRS):
        whole[name] = merged(mesh, [share[-1][at] for share in shares]).table()
    return {name: whole[name] for name in (*MAPS, "memory_core", "memory_names", "memory_names_bytes", *PAIRS)}


def _share(
    block: Block, segments: Sequence[Segment], site: str
) -> tuple[dict[str, np.ndarray], tuple[int, int], dict[str, int], list[Pairs]]:
    """This rank's part: arrays by name, its fullest core, (y, x), with the names of what that held; PAIRS."""
    mesh = _mesh_of(site, block, block.mesh.rank)
    shape = mesh.block_height, mesh.block_width
    counters = [segment.counters for segment in segments]
    sums = total([new_maps(shape), *(counted.maps[site] for counted in counters if site in counted.maps)])
    arrays = {name: getattr(sums, name) for name in NAMES}
    arrays["link_bytes"] = sum(
        (counted.links[site] for counted in counters if site in counted.links), np.zeros((4, *shape), np.int64)
    )
    arrays["ramp_bytes"] = sum(
        (counted.ramps[site] for counted in counters if site in counted.ramps), np.zeros((2, *shape), np.int64)
    )
    arrays["used"] = np.zeros(shape, np.int8)
    for counted in counters:
        if site in counted.used:
            arrays["used"] |= counted.used[site]
    peaks = [peak for counted in counters for peak in counted.peaks.get(site, [])]
    nothing = np.zeros(shape, np.int64)
    arrays["memory"] = np.maximum.reduce([nothing, *(peak.most for peak in peaks)])
    arrays["entries"] = np.maximum.reduce([nothing, *(peak.entries for peak in peaks)])
    y, x = (int(at) for at in np.unravel_index(np.argmax(arrays["memory"]), shape))
    names = next((peak.names((y, x)) for peak in peaks if peak.most[y, x] == arrays["memory"][y, x]), {})
    both = [counted.pairs[site] for counted in counters if site in counted.pairs]
    packets, carried = (merged(mesh, [pairs[at] for pairs in both]) for at in range(2))
    return arrays, (mesh.y0 + y, mesh.x0 + x), names, [handed_on(packets, mesh, sums), carried]


def _squares(site: str) -> dict[str, int]:
    """Of a site: squares are of `side` x `side` cores, and numbered row by row, `columns` a row."""
    *_, width, _, height = site.split(" ")
    side = side_of(int(width), int(height))
    return {"side": side, "columns": -(-int(width) // side), "rows": -(-int(height) // side)}


def _mesh_of(site: str, block: Block, rank: int) -> Mesh:
    """The mesh of a site by its name, which is `Block.site_key`, as a rank has it."""
    *_, width, _, height = site.split(" ")
    columns, rows = tile_ranks(int(width), int(height), block.control.size)
    return Mesh(int(width), int(height), columns, rows, rank)
