"""What the cores of a run have come to, clocks and counters, as arrays and facts of a snapshot; and back.

Memory and tables are not among them: a run that goes on takes its memory and installs its routes again. Sums and maxima
over all ranks are kept as one number, which the first rank then goes on from.
"""

from collections.abc import Sequence
from dataclasses import fields
from hashlib import sha256
from time import perf_counter
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.defects import embed, links_of
from meshrt.mesh.mesh import Mesh, tile_ranks
from meshrt.mesh.meter import Counters, Segment
from meshrt.mesh.wires import order, ramps
from meshrt.ranks.snapshot import Part, Snapshot

SUMS = ("messages", "hops", "wafer_hops", "stages", "macs", "out_of_order")
MAXIMA = ("entries", "memory", "sampled")  # of a segment; max_hops is one of its counters


def settings(block: Block) -> dict[str, Any]:
    """What of the mesh has to be the same for a run to go on, by the options that say so."""
    defects = None if block.wafer is None else sha256(block.wafer.lengths.tobytes()).hexdigest()
    return {"--mesh": [block.mesh.width, block.mesh.height], "--defects": defects}


def describe(blocks: Sequence[Block]) -> tuple[dict[str, Any], dict[str, Part]]:
    """The facts, whole at rank 0 only, and this rank's parts of the arrays. All ranks call it together.

    The blocks are all those that go on, of one run. The first is the one at work; no packet is under way.
    """
    blocks[0].settle()
    segments = blocks[0].ledger.segments
    for block in blocks:
        ramps.settle(block)
        order.end_of_use(block)
    parts = _clocks(blocks)
    for at, segment in enumerate(segments):
        for place, links in segment.counters.links.items():
            parts[f"links {at} {place}"] = _part(_mesh_of(place, blocks[0]), np.moveaxis(links, 0, -1))
        for place, used in segment.counters.used.items():
            parts[f"used {at} {place}"] = _part(_mesh_of(place, blocks[0]), used)
    shares = blocks[0].control.gather([_counted(segment) for segment in segments])
    if shares is None:
        return {}, parts
    running = perf_counter() - segments[-1].wall_begin
    told = [
        {
            "name": segment.name,
            "begin": segment.begin,
            "end": segment.end,
            "tokens": segment.tokens,
            "wall_seconds": running if segment is segments[-1] else segment.wall_seconds,
            **{name: sum(share[at][name] for share in shares) for name in SUMS},
            **{name: max(share[at][name] for share in shares) for name in ("max_hops", "longest_wait", *MAXIMA)},
        }
        for at, segment in enumerate(segments)
    ]
    return {"segments": told, "met": [block.clock.met for block in blocks]}, parts


def restore(blocks: Sequence[Block], snapshot: Snapshot) -> None:
    """Let these blocks go on from where those of `describe` were, on any number of ranks.

    The phase that was running then has to be running now: it takes over what was counted.
    """
    first, facts = blocks[0], snapshot.facts
    made = [_segment(told, first.mesh.rank) for told in facts["segments"]]
    wanted = _clocks(blocks)
    for name in snapshot.names:
        kind, _, rest = name.partition(" ")
        if kind in ("links", "used"):
            number, _, place = rest.partition(" ")
            wanted[name] = _counted_at(first, made[int(number)].counters, kind, place)
    for block, met in zip(blocks, facts["met"], strict=True):
        block.clock.path_changes()
        block.clock.met = float(met)
        block.reset_peaks()
    snapshot.fill(wanted)
    running = first.ledger.segments[-1]
    for field in fields(Segment):  # the same object: the phase that is open holds on to it
        setattr(running, field.name, getattr(made[-1], field.name))
    first.ledger.segments[:] = [*made[:-1], running]
    first.ledger.counters = running.counters


def _counted(segment: Segment) -> dict[str, float]:
    """This rank's share of what is kept as numbers."""
    counters = segment.counters
    found = {name: int(getattr(counters, name)) for name in (*SUMS, "max_hops")}
    return found | {name: int(getattr(segment, name)) for name in MAXIMA} | {"longest_wait": counters.longest_wait}


def _segment(told: dict[str, Any], rank: int) -> Segment:
    """A segment as this rank goes on with it: what was added up over all ranks is the first one's."""
    sums: dict[str, Any] = {name: int(told[name]) for name in (*SUMS, "max_hops")} if rank == 0 else {}
    counters = Counters(**sums, longest_wait=float(told["longest_wait"]) if rank == 0 else 0.0)
    (begin, hops, stages), (end, end_hops, end_stages) = told["begin"], told["end"]
    return Segment(
        str(told["name"]),
        counters,
        entries=int(told["entries"]) if rank == 0 else 0,
        memory=int(told["memory"]) if rank == 0 else 0,
        begin=(float(begin), int(hops), int(stages)),
        end=(float(end), int(end_hops), int(end_stages)),
        wall_begin=perf_counter() - told["wall_seconds"],
        wall_seconds=float(told["wall_seconds"]),
        tokens=told["tokens"] if told["tokens"] is None else int(told["tokens"]),
        sampled=bool(told["sampled"]),
    )


def _counted_at(block: Block, counters: Counters, kind: str, place: str) -> Part:
    """Fresh counters of links, or of cores used, for one place: as a part to be filled."""
    mesh = _mesh_of(place, block)
    shape = mesh.block_height, mesh.block_width
    if kind == "used":
        counters.used[place] = np.zeros(shape, bool)
        return _part(mesh, counters.used[place])
    ledger = block.ledger
    if block.wafer is not None and place not in ledger.wafers:  # a place that the run has left for good
        ledger.wafers[place] = links_of(embed(block.wafer.defects, mesh.width, mesh.height), mesh)
    counters.links[place] = np.zeros((4, *shape), np.int64)
    return _part(mesh, np.moveaxis(counters.links[place], 0, -1))


def _clocks(blocks: Sequence[Block]) -> dict[str, Part]:
    """Views of all that clocks keep of each core: [bh, bw, 9], and [bh, bw, 5] twice."""
    found = dict[str, Part]()
    for at, block in enumerate(blocks):
        clock, shape = block.clock, block.shape
        kept = {"clock": clock.cells[:, :-1].reshape(-1, *shape), "asked": clock.asked, "idle": clock.idle}
        found |= {f"{name} {at}": _part(block.mesh, np.moveaxis(array, 0, -1)) for name, array in kept.items()}
    return found


def _part(mesh: Mesh, array: np.ndarray) -> Part:
    return Part(array, mesh.y0, mesh.x0)


def _mesh_of(place: str, block: Block) -> Mesh:
    """The mesh of a place by its name, which is `Block.here`."""
    *_, width, _, height = place.split(" ")
    columns, rows = tile_ranks(int(width), int(height), block.control.size)
    return Mesh(int(width), int(height), columns, rows, block.mesh.rank)
