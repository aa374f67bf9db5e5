"""What the NeuronCores of a run have come to, clocks, counters, tensors, as parts of a snapshot; and back.

A run that goes on has made its tensors again, so of memory only what has happened since is kept: what was written, when
it can be read and written, what is spilled, and since when which room is free. All times are seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import pairwise
from typing import Any

from meshrt.groups.group import Traffic
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.cores import Cores
from meshrt.neuron.dtypes import known
from meshrt.neuron.engines import COUNTS, NeuronPhase
from meshrt.neuron.isa import core_identity
from meshrt.neuron.memory import Psum, Sbuf
from meshrt.neuron.regions import PartTimes
from meshrt.neuron.store import Store
from meshrt.neuron.tile import Tile
from meshrt.ranks.snapshot import Snapshot, SnapshotPart

NamedTiles = Mapping[str, Tile]  # by name: what a program holds between two tokens, of it what was written


def settings(cores: Cores) -> dict[str, Any]:
    """What of the machine has to be the same for a run to go on, by the options that say so."""
    return {"--cores": cores.count}


def describe(cores: Cores, held: Sequence[NamedTiles]) -> tuple[dict[str, Any], dict[str, SnapshotPart]]:
    """The facts, whole at rank 0 only, and this rank's parts of the arrays. All ranks call it together.

    `held` has the tiles of each hosted core. No instruction is without its result.
    """
    facts_here = []
    for core, tiles, traffic in zip(cores.mine, held, cores.group.traffic, strict=True):
        core.settle()
        facts_here.append(
            _core(core, tiles) | {"traffic": {kind: [sent.calls, sent.bytes] for kind, sent in traffic.items()}}
        )
    shares = cores.control.gather(facts_here)
    facts = {} if shares is None else {"cores": [core_facts for share in shares for core_facts in share]}
    return facts, _parts(cores, held)


def restore(cores: Cores, held: Sequence[NamedTiles], snapshot: Snapshot) -> None:
    """Let these cores go on from where those of `describe` were, on any number of ranks.

    The phase that was running then has to be running now: it takes over what was counted.
    """
    snapshot.fill(_parts(cores, held))
    core_facts = snapshot.facts["cores"]
    for core, tiles, traffic in zip(cores.mine, held, cores.group.traffic, strict=True):
        _restore(core, tiles, core_facts[core.index])
        traffic |= {str(kind): Traffic(int(a), int(b)) for kind, (a, b) in core_facts[core.index]["traffic"].items()}


def _parts(cores: Cores, held: Sequence[NamedTiles]) -> dict[str, SnapshotPart]:
    """The numbers of the tiles, each an array [1, elements] of its own, as a tile may have another shape elsewhere."""
    if not cores.payload:
        return {}
    return {
        f"{name} of {core.index}": SnapshotPart(tile.data)
        for core, tiles in zip(cores.mine, held, strict=True)
        for name, tile in tiles.items()
    }


def _core(core: NeuronCore, tiles: NamedTiles) -> dict[str, Any]:
    dma = core.dma
    return {
        "counts": core.counts,
        "ticks": core.ticks,
        "finish": core.finish,
        "engines": {engine.name: [engine.now, engine.busy, engine.instructions] for engine in core.engines},
        "dma": [dma.since, dma.end, dma.busy, dma.transfers, dma.gaps, dma.queues],
        "memories": {
            buffer.name: [buffer.live, buffer.peak, buffer.most] for buffer in (core.hbm, core.sbuf, core.psum)
        },
        "idle": [core.sbuf.idle, core.psum.idle],
        "phases": [asdict(phase) for phase in core.phases],
        "identities": {dtype.name: _store(tile.store, dma.since) for dtype, tile in core.identities.items()},
        "tiles": {name: _store(tile.store, dma.since) for name, tile in tiles.items()},
    }


def _store(store: Store, since: float) -> list[Any]:
    """Nothing begins before `since`: what was over by then is left out of the times of parts."""
    parts = [_part_times(times, since) for times in (store.part_writes, store.part_reads)]
    return [store.ready, store.idle, store.used, store.resident, store.saved, *parts]


def _part_times(times: PartTimes | None, since: float) -> list[Any] | None:
    """Cuts of rows and of bytes, and the seconds of the cells; None where all have one."""
    grid = None if times is None else times.after(since)
    return None if grid is None else [grid.rows, grid.columns, grid.times.tolist()]


def _restore(core: NeuronCore, tiles: NamedTiles, facts: Mapping[str, Any]) -> None:
    for name, was in facts["identities"].items():
        _restore_store(core_identity(core, known(name)).store, was)
    for name, tile in tiles.items():
        tile.note_written()
        _restore_store(tile.store, facts["tiles"][name])
    core.counts |= {name: int(facts["counts"][name]) for name in COUNTS}
    core.ticks, core.finish = int(facts["ticks"]), float(facts["finish"])
    for engine in core.engines:
        now, busy, instructions = facts["engines"][engine.name]
        engine.now, engine.busy, engine.instructions = float(now), float(busy), int(instructions)
    since, end, busy, transfers, gaps, queues = facts["dma"]
    core.dma.since = float(since)
    core.dma.end, core.dma.busy, core.dma.transfers = float(end), float(busy), int(transfers)
    core.dma.gaps[:] = [(float(begin), float(end)) for begin, end in gaps]
    core.dma.queues |= {str(name): float(start) for name, start in queues.items()}
    for buffer in (core.hbm, core.sbuf, core.psum):
        buffer.live, buffer.peak, buffer.most = map(int, facts["memories"][buffer.name])
    _restore_room(core.sbuf, core.psum, *facts["idle"])
    *ended, running = facts["phases"]
    for name, value in running.items():  # the same object: the phase that is open holds on to it
        setattr(core.phases[-1], name, value)
    core.phases[:-1] = [
        NeuronPhase(**{field.name: phase[field.name] for field in fields(NeuronPhase)}) for phase in ended
    ]


def _restore_store(store: Store, values: Sequence[Any]) -> None:
    ready, idle, used, resident, saved, *parts = values
    store.ready, store.idle, store.used = float(ready), float(idle), int(used)
    store.resident, store.saved = bool(resident), bool(saved)
    store.part_writes, store.part_reads = (_part_times_of(store, times) for times in parts)


def _part_times_of(store: Store, values: Sequence[Any] | None) -> PartTimes | None:
    """The same parts of a store that may be longer now, or shorter, behind the tile that is kept."""
    if values is None:
        return None
    rows, columns, seconds = values
    times = PartTimes(store.shape, store.itemsize, 0.0)
    for (top, end), of_row in zip(pairwise(map(int, rows)), seconds, strict=True):
        for (left, right), when in zip(pairwise(map(int, columns)), of_row, strict=True):
            times.keep((top, min(end, store.shape[0]), left, min(right, store.row_bytes)), float(when))
    return times


def _restore_room(sbuf: Sbuf, psum: Psum, room: Sequence[Any], banks: Sequence[Any]) -> None:
    """Both lists are heaps as they are."""
    sbuf.idle[:] = [(float(since), int(nbytes)) for since, nbytes in room]
    psum.idle[:] = [float(since) for since in banks]
