"""A rank's schedule, made from what the scouts of a channel saw."""

from collections.abc import Iterator

import numpy as np

from meshrt.errors import RouteError
from meshrt.mesh.cores import Cores
from meshrt.mesh.wires.lines import Index, as_index, pieces
from meshrt.mesh.wires.routers import core_at, ints, line_indices
from meshrt.mesh.wires.schedule import BATCH, BatchTick, Message, PacketBatch, PayloadMove, Schedule
from meshrt.mesh.wires.scouts import Trace
from meshrt.mesh.wires.tables import Channel


def compile_schedule(
    block: Cores, channel: Channel, trace: Trace, positions: np.ndarray | None, lines: np.ndarray | None
) -> Schedule:
    """The schedule for those sources whose position (and, for a whole-block trace, line) is marked.

    RouteError where two packets would be delivered at one core: a transfer hands a core one tile.
    """
    keep = np.ones(len(trace.pos), bool)
    if positions is not None:
        keep &= positions[trace.pos]
    if lines is not None and trace.whole_block:
        keep &= lines[trace.line]
    tag, note = channel.number % 32768, f"route set {channel.number} along {channel.axis or 'paths'}"
    seen = block.mapped or block.clock.messages is not None
    if not keep.any():  # nothing of it passes here, as on most ranks of one core
        meets, none = bool(trace.meets and block.scouts.total(0)), slice(0, 0)
        return Schedule(trace.whole_block, (), 0, 0, 0, none, 0, (), (), (), meets, tag, note, ints() if seen else None)
    ends = [(slots[keep[slots]], cores[keep[slots]], tick) for tick, (slots, cores) in _deliveries(trace)]
    slots, cores = (np.concatenate([ints(), *(end[i] for end in ends)]) for i in range(2))
    if np.bincount(cores, minlength=1).max() > 1:
        at = int(cores[np.argmax(np.bincount(cores)[cores])])
        core = core_at(block, channel, trace.whole_block, at)
        raise RouteError(f"core {core} would get two tiles in one transfer; send them in two, or by a relay")
    hops = np.concatenate([ints(), *(np.full(len(end[0]), end[2]) for end in ends)])
    order = np.argsort(cores, kind="stable")
    number = np.zeros(cores.max(initial=-1) + 1, np.int64)  # of a core among those that get packets
    number[cores[order]] = np.arange(len(order))
    crossings = tuple(_crossings(trace, keep))
    root = _roots(trace.parent)
    origin = np.stack([np.full(len(keep), -1), trace.core])  # [message, position] of a payload; -1: this rank's tiles
    batches = [
        _batch(block, trace, chosen, root, number, origin)
        for chosen in _split(block, channel, trace, keep, root)
        if chosen.any()
    ]
    return Schedule(
        trace.whole_block,
        tuple(batches),
        int((keep & (trace.core >= 0)).sum()),
        sum(int(keep[slots].sum()) for tick in trace.ticks[1:] for _, slots, _ in tick.moves),
        int(hops.max(initial=0)),
        as_index(cores[order]),
        len(order),
        _parts(cores[order], origin[:, root[slots[order]]], hops[order]),
        crossings,
        tuple(_counted(trace.core[keep & (trace.core >= 0)])),
        bool(trace.meets and block.scouts.total(int(any(np.max(packets) > 1 for _, _, packets in crossings)))),
        tag,
        note,
        _origins(block, channel, trace, slots[order]) if seen else None,
        () if block.clock.links is None else tuple(_courses(block, channel, trace, keep)),
        ints() if block.clock.links is None else _origins(block, channel, trace, np.flatnonzero(keep)),
    )


def _courses(
    block: Cores, channel: Channel, trace: Trace, keep: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray, int]]:
    """(port, cores that packets leave by it, where they are from, hops after that) of all that move."""
    for hops, tick in enumerate(trace.ticks[1:], 1):
        for port, slots, cores in tick.moves:
            on = keep[slots]
            yield port, cores[on], _origins(block, channel, trace, slots[on]), hops


def _origins(block: Cores, channel: Channel, trace: Trace, slots: np.ndarray) -> np.ndarray:
    """Where the packets in those slots are from: positions on their lines, or cores y * W + x of a whole block."""
    at = trace.pos[slots]
    if not trace.whole_block or channel.axis is None:
        return np.asarray(at)
    line = trace.line[slots]
    return np.asarray(line * block.mesh.width + at if channel.axis == "x" else at * block.mesh.width + line)


def _deliveries(trace: Trace) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray]]]:
    """(tick, (slots, cores)) of what is delivered. In the tick in which packets start nothing is."""
    for number, tick in enumerate(trace.ticks[1:], 1):
        yield number, tick.deliveries


def _batch(
    block: Cores, trace: Trace, keep: np.ndarray, root: np.ndarray, delivered: np.ndarray, origin: np.ndarray
) -> PacketBatch:
    """The packets in those slots. Enters in `origin` where the payloads of packets from other ranks are."""
    number = np.cumsum(keep) - 1  # new slot numbers
    ticks, received = [], 0
    count = int(keep.sum())
    for at, tick in enumerate(trace.ticks[1:], 1):
        moves: list[tuple[int, Index, Index]] = []
        movers = ints()
        for way, slots, cores in tick.moves:
            on = keep[slots]
            movers = np.append(movers, slots[on])
            for part in one_a_place(cores[on]):
                moves += [(way, *piece) for piece in pieces(number[slots[on]][part], cores[on][part])]  # type: ignore[misc]  # a piece is a pair
        sends, recvs = [], []
        for way, slots in tick.sends:
            slots = slots[keep[slots]]
            if len(slots):
                parts = _parts(np.arange(len(slots)), origin[:, root[slots]])
                sends.append(_message(block, way, number[slots], parts))
        for way, slots in tick.recvs:
            slots = slots[keep[slots]]
            if len(slots):
                origin[0, slots], origin[1, slots] = received, np.arange(len(slots))
                received += 1
                recvs.append(_message(block, way, number[slots], ()))
        slots, cores = tick.deliveries
        on = keep[slots]
        ends = pieces(number[slots[on]], cores[on], delivered[cores[on]])
        if moves or recvs or ends:
            branches = tuple(
                (as_index(number[a[keep[a]]]), as_index(number[b[keep[a]]])) for a, b in tick.branches if keep[a].any()
            )
            all_move = len(movers) == count == len(set(movers.tolist()))
            ticks.append(BatchTick(at, branches, tuple(moves), all_move, tuple(sends), tuple(recvs), tuple(ends)))  # type: ignore[arg-type]  # lists of what are tuples by now
    starting = np.flatnonzero(keep & (trace.core >= 0))
    sources = [
        piece
        for part in one_a_place(trace.core[starting])
        for piece in pieces(number[starting][part], trace.core[starting][part])
    ]
    return PacketBatch(count, tuple(sources), tuple(ticks), any(tick.sends or tick.recvs for tick in ticks))  # type: ignore[arg-type]  # the same


def _split(block: Cores, channel: Channel, trace: Trace, keep: np.ndarray, root: np.ndarray) -> list[np.ndarray]:
    """The packets of a transfer, bool [slots], by batch: one for all, or those between ranks and then the others.

    Along y, where lines lie side by side in memory, a batch has the packets from some rows; along x `replay` cuts the
    block into strips of lines.
    """
    if trace.whole_block or channel.axis is None:
        return [keep]
    lines = len(line_indices(block, channel))
    starting = np.flatnonzero(keep & (trace.core >= 0))
    if len(starting) * lines < 2 * BATCH or len(set(trace.core[starting].tolist())) < len(starting):
        return [keep]
    for way in range(4):
        used = [cores[keep[slots]] for tick in trace.ticks for port, slots, cores in tick.moves if port == way]
        if np.bincount(np.concatenate([ints(), *used]), minlength=1).max() > 1:
            return [keep]  # packets meet
    across = np.zeros(len(keep), bool)
    for tick in trace.ticks:
        for _, slots in (*tick.sends, *tick.recvs):
            across[root[slots]] = True
    across = across[root]
    group = np.zeros(len(keep), np.int64)
    if channel.axis == "y":
        group = trace.core[root] // max(1, BATCH // lines)
    inside = keep & ~across
    return [keep & across, *(inside & (group == number) for number in sorted(set(group[inside].tolist())))]


def _crossings(trace: Trace, keep: np.ndarray) -> Iterator[tuple[int, Index, int | np.ndarray]]:
    """(port, cores, packets of a line that leave them by it)."""
    for way in range(4):
        used = [cores[keep[slots]] for tick in trace.ticks for port, slots, cores in tick.moves if port == way]
        for crossing in _counted(np.concatenate([ints(), *used])):
            yield way, *crossing


def _counted(cores: np.ndarray) -> Iterator[tuple[Index, int | np.ndarray]]:
    """Which cores these are, and how often each is there; nothing where there are none."""
    counts = np.bincount(cores, minlength=1)
    present = np.flatnonzero(counts)
    if len(present):
        counts = counts[present]
        yield as_index(present), int(counts[0]) if (counts == counts[0]).all() else counts


def _roots(parent: np.ndarray) -> np.ndarray:
    """The slot whose payload each slot carries: its own, or that of the packet that it was copied from."""
    root = np.arange(len(parent))
    while (up := parent[root]).max(initial=-1) >= 0:
        root = np.where(up >= 0, up, root)
    return root


def _parts(to: np.ndarray, origin: np.ndarray, hops: np.ndarray | None = None) -> tuple[PayloadMove, ...]:
    """Group payload moves by where they are from, and by distance if those are few: then each is one strided copy.

    `to` rises. With `hops` they are deliveries.
    """
    message, position = origin
    parts = []
    for number in sorted(set(message.tolist())):
        on = message == number
        apart = to[on] - position[on]
        distances = sorted(set(apart.tolist()))
        groups = [apart == distance for distance in distances] if len(distances) <= 4 else [np.ones(len(apart), bool)]
        for group in groups:
            at = np.flatnonzero(on)[group]
            far = 0 if hops is None else int(hops[at[0]]) if (hops[at] == hops[at[0]]).all() else hops[at]
            delivered = as_index(at) if hops is not None else slice(0, 0)
            parts.append(PayloadMove(as_index(to[at]), number, as_index(position[at]), delivered, far))
    return tuple(parts)


def _message(block: Cores, way: int, slots: np.ndarray, parts: tuple[PayloadMove, ...]) -> Message:
    rank = block.mesh.neighbour(way)
    assert rank is not None
    return Message(way, rank, as_index(slots), len(slots), parts)


def one_a_place(cores: np.ndarray) -> list[np.ndarray]:
    """Cut packets that meet at the links or the ramps of these cores into rounds with one at each, in order."""
    if np.bincount(cores, minlength=1).max() < 2:
        return [np.arange(len(cores))]
    order = np.argsort(cores, kind="stable")
    first = np.searchsorted(cores[order], cores[order])
    turn = np.empty(len(cores), np.int64)
    turn[order] = np.arange(len(cores)) - first
    return [np.flatnonzero(turn == number) for number in range(int(turn.max()) + 1)]
