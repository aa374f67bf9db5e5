"""What the cores of a run have come to, clocks and counters, as arrays and facts of a snapshot; and back.

Memory and tables are not among them: a run that goes on takes its memory and installs its routes again. Sums and maxima
over all ranks are kept as one number, which the first rank then goes on from.
"""

from collections.abc import Sequence
from dataclasses import fields
from time import perf_counter, process_time
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.defects import embed, links_of
from meshrt.mesh.mesh import Mesh, tile_ranks
from meshrt.mesh.meter import SUMS, Counters, Segment
from meshrt.mesh.wires import order, ramps
from meshrt.ranks.snapshot import Snapshot, SnapshotPart

MAXIMA = ("entries", "memory", "sampled")  # of a segment; max_hops is one of its counters


def settings(block: Block) -> dict[str, Any]:
    """What of the mesh has to be the same for a run to go on, by the options that say so."""
    defects = None
    if block.wafer is not None:
        from hashlib import sha256  # meshes without defects start sooner without

        defects = sha256(block.wafer.lengths.tobytes()).hexdigest()
    return {"--mesh": [block.mesh.width, block.mesh.height], "--defects": defects}


def describe(blocks: Sequence[Block]) -> tuple[dict[str, Any], dict[str, SnapshotPart]]:
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
        for site, links in segment.counters.links.items():
            parts[f"links {at} {site}"] = _part(_mesh_of(site, blocks[0]), np.moveaxis(links, 0, -1))
        for site, ramps_there in segment.counters.ramps.items():
            parts[f"ramps {at} {site}"] = _part(_mesh_of(site, blocks[0]), np.moveaxis(ramps_there, 0, -1))
        for site, used in segment.counters.used.items():
            parts[f"used {at} {site}"] = _part(_mesh_of(site, blocks[0]), used)
    counted = [_counted(segment) for segment in segments]
    counted[-1]["cpu_seconds"] = process_time() - segments[-1].cpu_begin  # it is running
    shares = blocks[0].control.gather(counted)
    if shares is None:
        return {}, parts
    running = perf_counter() - segments[-1].wall_begin
    segment_facts = [
        {
            "name": segment.name,
            "begin": segment.begin,
            "end": segment.end,
            "tokens": segment.tokens,
            "wall_seconds": running if segment is segments[-1] else segment.wall_seconds,
            **{name: sum(share[at][name] for share in shares) for name in (*SUMS, "cpu_seconds")},
            **{name: max(share[at][name] for share in shares) for name in ("max_hops", "longest_wait", *MAXIMA)},
        }
        for at, segment in enumerate(segments)
    ]
    return {"segments": segment_facts, "met": [block.clock.met for block in blocks]}, parts


def restore(blocks: Sequence[Block], snapshot: Snapshot) -> None:
    """Let these blocks go on from where those of `describe` were, on any number of ranks.

    The phase that was running then has to be running now: it takes over what was counted.
    """
    first, facts = blocks[0], snapshot.facts
    restored = [_segment(segment, first.mesh.rank) for segment in facts["segments"]]
    parts = _clocks(blocks)
    for name in snapshot.names:
        kind, _, rest = name.partition(" ")
        if kind in ("links", "ramps", "used"):
            number, _, site = rest.partition(" ")
            parts[name] = _counted_at(first, restored[int(number)].counters, kind, site)
    for block, met in zip(blocks, facts["met"], strict=True):
        block.clock.path_changes()
        block.clock.met = float(met)
        block.reset_peaks()
    snapshot.fill(parts)
    running = first.ledger.segments[-1]
    for field in fields(Segment):  # the same object: the phase that is open holds on to it
        setattr(running, field.name, getattr(restored[-1], field.name))
    first.ledger.segments[:] = [*restored[:-1], running]
    first.ledger.counters = running.counters


def _counted(segment: Segment) -> dict[str, float]:
    """This rank's share of what is kept as numbers."""
    counters = segment.counters
    counts = {name: int(getattr(counters, name)) for name in (*SUMS, "max_hops")}
    peaks = {name: int(getattr(segment, name)) for name in MAXIMA}
    return counts | peaks | {"longest_wait": counters.longest_wait, "cpu_seconds": segment.cpu_seconds}


def _segment(facts: dict[str, Any], rank: int) -> Segment:
    """A segment as this rank goes on with it: what was added up over all ranks is the first one's."""
    sums: dict[str, Any] = {name: int(facts[name]) for name in (*SUMS, "max_hops")} if rank == 0 else {}
    counters = Counters(**sums, longest_wait=float(facts["longest_wait"]) if rank == 0 else 0.0)
    spent = float(facts.get("cpu_seconds", 0)) if rank == 0 else 0.0  # states of before have none
    (begin, hops, stages), (end, end_hops, end_stages) = facts["begin"], facts["end"]
    return Segment(
        str(facts["name"]),
        counters,
        entries=int(facts["entries"]) if rank == 0 else 0,
        memory=int(facts["memory"]) if rank == 0 else 0,
        begin=(float(begin), int(hops), int(stages)),
        end=(float(end), int(end_hops), int(end_stages)),
        wall_begin=perf_counter() - facts["wall_seconds"],
        wall_seconds=float(facts["wall_seconds"]),
        cpu_begin=process_time() - spent,
        cpu_seconds=spent,
        tokens=facts["tokens"] if facts["tokens"] is None else int(facts["tokens"]),
        sampled=bool(facts["sampled"]),
    )


def _counted_at(block: Block, counters: Counters, kind: str, site: str) -> SnapshotPart:
    """Fresh counters of links, or of cores used, for one site: as a part to be filled."""
    mesh = _mesh_of(site, block)
    shape = mesh.block_height, mesh.block_width
    if kind == "used":
        counters.used[site] = np.zeros(shape, bool)
        return _part(mesh, counters.used[site])
    if kind == "ramps":
        counters.ramps[site] = np.zeros((2, *shape), np.int64)
        return _part(mesh, np.moveaxis(counters.ramps[site], 0, -1))
    ledger = block.ledger
    if block.wafer is not None and site not in ledger.wafers:  # a site that the run has left for good
        ledger.wafers[site] = links_of(embed(block.wafer.defects, mesh.width, mesh.height), mesh)
    counters.links[site] = np.zeros((4, *shape), np.int64)
    return _part(mesh, np.moveaxis(counters.links[site], 0, -1))


def _clocks(blocks: Sequence[Block]) -> dict[str, SnapshotPart]:
    """Views of all that clocks keep of each core: [bh, bw, 9], and [bh, bw, 5] twice."""
    parts = dict[str, SnapshotPart]()
    for at, block in enumerate(blocks):
        clock, shape = block.clock, block.shape
        arrays = {"clock": clock.cells[:, :-1].reshape(-1, *shape), "asked": clock.asked_at, "idle": clock.idle}
        parts |= {f"{name} {at}": _part(block.mesh, np.moveaxis(array, 0, -1)) for name, array in arrays.items()}
    return parts


def _part(mesh: Mesh, array: np.ndarray) -> SnapshotPart:
    return SnapshotPart(array, mesh.y0, mesh.x0)


def _mesh_of(site: str, block: Block) -> Mesh:
    """The mesh of a site by its name, which is `Block.site_key`."""
    *_, width, _, height = site.split(" ")
    columns, rows = tile_ranks(int(width), int(height), block.control.size)
    return Mesh(int(width), int(height), columns, rows, block.mesh.rank)
