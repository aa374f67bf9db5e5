"""Operations under way: done at once where all lies in memory, else step by step as wavelets come and room is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshrt.csl import origin
from meshrt.csl.costs import COSTS, LANES
from meshrt.csl.machine.addresses import SIZES, elements
from meshrt.csl.machine.banks import conflicts
from meshrt.csl.machine.operations import Options, VectorOperation
from meshrt.csl.machine.trains import NO_CHAIN, CausalChain
from meshrt.csl.machine.vectors import (
    Dsr,
    Fab,
    FifoName,
    Mem,
    apart,
    increment,
    indexed,
    set_base,
    set_length,
    set_stride,
)

INFINITE = 1 << 30


@dataclass(slots=True, eq=False)
class PendingOperation:
    """An operation under way. `target` and `sources` as resolved; `done` of `total` elements until `time`."""

    of: VectorOperation
    target: Any
    sources: tuple[Any, ...]
    options: Options
    total: int
    time: float
    where: Any  # in the source: (function, line of its Python)
    done: int = 0
    waits: bool = False  # the core's task waits for it
    over: bool = False
    stalled: bool = False  # it had data, and no room for them
    then: Any = None  # what a library does next, given the time and what that comes from
    chain: CausalChain = NO_CHAIN  # what `time` comes from
    moves: float = 0.0  # cycles of its time in which numbers were moved; the rest it waited


def start(core: Any, of: VectorOperation, operands: tuple[Any, ...], options: Options) -> PendingOperation | None:
    """Begin an operation; what is returned is what the task has to wait for."""
    saved: list[tuple[Dsr, Any, Options]] = []
    resolved = []
    for operand in operands:
        if isinstance(operand, Dsr):
            held = core.dsrs.get((operand.kind, operand.index))
            if held is None:
                raise origin.failed(
                    core, f"register {operand.index} of {operand.kind} is used and nothing was loaded to it"
                )
            loaded, how = held
            if how.save_address:
                saved.append((operand, loaded, how))
            if how.is_async:  # what the operation says itself goes before
                options = replace(
                    options, is_async=True,
                    activate=how.activate if options.activate is None else options.activate,
                    unblock=how.unblock if options.unblock is None else options.unblock,
                )  # fmt: skip
            operand = loaded
        resolved.append(operand)
    target, sources = resolved[0], tuple(resolved[1:])
    total = _total(target, sources)
    for dsr, dsd, how in saved:
        if isinstance(dsd, Mem):
            core.dsrs[dsr.kind, dsr.index] = (increment(dsd, total * dsd.strides[0], dsd.nbytes), how)
    plain = isinstance(target, Mem) and not any(isinstance(source, Fab | FifoName) for source in sources)
    core.operations += 1
    if plain:
        compute(core, of, target, sources, 0, total)
        if core.banked:
            cycles = float(-(-total // of.narrow) + clashes(core, of, sources, 0, total, of.narrow))
        else:
            cycles = COSTS.bank * total / (of.lanes if of.lanes < 4 else LANES)
        if options.is_async:
            core.t += COSTS.start_async
            core.wafer.at(core.t + cycles, core.effect, (options.activate, options.unblock, core.chain))
        else:
            core.t += cycles if core.mapping else COSTS.start + cycles
        return None
    core.t += COSTS.start_async if options.is_async else COSTS.start_fabric
    pending = PendingOperation(
        of, target, sources, options, total, core.t, origin.where(), waits=not options.is_async, chain=core.chain
    )
    core.pending.append(pending)
    note(core, pending)
    if total == 0:
        core.finish(pending)
    core.advance(pending)
    if pending.over and pending.waits:
        core.take_over(pending)
        return None
    return pending if pending.waits else None


def _total(target: Any, sources: tuple[Any, ...]) -> int:
    for kind in (Mem, Fab):  # memory says how long it is, then the fabric
        for operand in (target, *sources):
            if isinstance(operand, kind) and not (isinstance(operand, Mem) and not operand.extents):
                return int(operand.extent)
    return 1 if not any(isinstance(operand, FifoName) for operand in (target, *sources)) else INFINITE


def compute(core: Any, of: VectorOperation, target: Mem, sources: tuple[Any, ...], begin: int, count: int) -> None:
    if count <= 0:
        return
    taken = of.dtype if of.takes is None else of.takes
    given = [
        core.views[taken][elements(core, source, taken, begin, count)] if isinstance(source, Mem) else source
        for source in sources
    ]
    put(core, of, target, sources, given, begin, count)


def put(
    core: Any, of: VectorOperation, target: Mem, sources: tuple[Any, ...], given: list[Any], begin: int, count: int
) -> None:
    """Compute and store; one after the other where all goes to one place and comes from it. Where a vector comes to its
    places again, as in a sum over an axis (accumulator[k] for i, j, k), what was stored there is read by then.

    One number that all goes to, with one number before the vector, such as @fmaxs(&most, most, vector), is a running
    result: 25-pt-stencil of csl-examples, which checks itself, takes its extremes that way.
    """
    view = core.views[of.dtype]
    where = elements(core, target, of.dtype, begin, count)
    if not target.extents and len(sources) > 1 and not isinstance(sources[0], Mem | Fab | FifoName):
        total_at = target.base // SIZES[of.dtype]
        running = view[total_at] if begin else given[0]
        for others in zip(*(np.broadcast_to(values, (count,)) for values in given[1:]), strict=True):
            running = of.dtype(of.compute(running, *others))
        view[total_at] = running
        return
    if count > 1 and not any(target.strides):
        at = target.base // SIZES[of.dtype]
        same = [
            isinstance(source, Mem) and source.base == target.base and not any(source.strides) for source in sources
        ]
        columns = [np.broadcast_to(values, (count,)) for values in given]
        for step in range(count) if any(same) else (count - 1,):
            view[at] = of.compute(
                *(view[at] if is_same else column[step] for column, is_same in zip(columns, same, strict=True))
            )
        return
    piece = apart(target.extents, target.strides) if len(target.extents) > 1 else begin + count
    if begin // piece == (begin + count - 1) // piece:
        view[where] = of.compute(*given)
        return
    taken = of.dtype if of.takes is None else of.takes
    low = begin
    while low < begin + count:
        high = min(begin + count, (low // piece + 1) * piece)
        part = [
            core.views[taken][elements(core, source, taken, low, high - low)] if isinstance(source, Mem)
            else values[low - begin : high - begin] if isinstance(source, Fab | FifoName)
            else values
            for source, values in zip(sources, given, strict=True)
        ]  # fmt: skip
        view[where[low - begin : high - begin]] = of.compute(*part)
        low = high


def advance(core: Any, pending: PendingOperation) -> bool:
    """Go on as far as wavelets and room allow. Did anything move?"""
    target, of, done = pending.target, pending.of, pending.done
    if pending.stalled:
        pending.time, pending.stalled = max(pending.time, core.wafer.now), False
    count = movable(core, pending)
    if count <= 0:
        return False
    given, begin, last, last_chain = taken(core, pending, count)
    operands = (target, *pending.sources)
    most = of.narrow if core.banked else of.lanes
    lanes = max([operand.simd for operand in operands if isinstance(operand, Fab)], default=most)
    lanes = min(lanes, most) if most > 1 else 1
    moves = count / lanes + clashes(core, of, pending.sources, done, count, lanes)
    end = begin + moves
    if last > end:
        end, pending.chain = last, last_chain
    pending.time = end
    pending.moves += moves
    pending.done += count
    if isinstance(target, Mem):
        put(core, of, target, pending.sources, given, done, count)
    else:
        give(core, pending, given, begin, count)
    note(core, pending)
    if pending.done >= pending.total:
        core.finish(pending)
    return True


def movable(core: Any, pending: PendingOperation) -> int:
    """Elements that are there, and that there is room for; where that is short, the operation is `stalled`."""
    count, target = pending.total - pending.done, pending.target
    for source in pending.sources:
        if isinstance(source, Fab):
            count = min(count, core.available(core.input_color(source)))
        elif isinstance(source, FifoName):
            held = core.fifos[source.index]
            held.was_empty = held.was_empty or held.count < count
            count = min(count, held.count)
    ready = count
    if count > 0 and isinstance(target, Fab):
        count = min(count, core.wafer.room(core, core.output_color(target), pending, count))
    elif isinstance(target, FifoName):
        held = core.fifos[target.index]
        held.was_full = held.was_full or held.count + count > target.capacity
        count = min(count, target.capacity - held.count)
    pending.stalled = count < ready
    return count


def taken(core: Any, pending: PendingOperation, count: int) -> tuple[list[Any], float, float, CausalChain]:
    """The next elements of all sources; when they begin and end to be there, and what the last of them comes from.

    Where one makes the operation begin later, `pending.chain` is what that comes from.
    """
    begin, last, last_chain = pending.time, 0.0, pending.chain
    dtype = pending.of.dtype if pending.of.takes is None else pending.of.takes
    given: list[Any] = []
    for source in pending.sources:
        if isinstance(source, Fab):
            raw, first, final, begins, ends = core.take(core.input_color(source), count)
            if first > begin:
                begin, pending.chain = first, begins
            if final > last:
                last, last_chain = final, ends
            given.append(_narrow(raw, dtype))
        elif isinstance(source, FifoName):
            raw, final, chain = core.pop(source, count, pending.time)
            if final - count > begin:
                begin, pending.chain = final - count, chain
            if final > last:
                last, last_chain = final, chain
            given.append(_narrow(raw, dtype))
        elif isinstance(source, Mem):
            given.append(core.views[dtype][elements(core, source, dtype, pending.done, count)])
        else:
            given.append(source)
    return given, begin, last, last_chain


def give(core: Any, pending: PendingOperation, given: list[Any], begin: float, count: int) -> None:
    """Compute, and send the results on the fabric or into a queue, until `pending.time`."""
    target, of, end = pending.target, pending.of, pending.time
    result = np.broadcast_to(np.asarray(of.compute(*given)).astype(of.dtype), (count,))
    if not isinstance(target, Fab):
        core.push(target, _widen(result), end, pending.chain)
        return
    data = _widen(result)
    if target.index_offset:
        data = data & np.uint32(0xFFFF) | np.uint32(target.index << 16)
    gap = (end - begin) / count
    core.wafer.send(core, core.output_color(target), data, begin, gap, target.control, pending.chain)
    if target.advance_switch and pending.done == pending.total:
        core.wafer.turn(core, core.output_color(target), "SWITCH_ADV", end)


def clashes(core: Any, of: VectorOperation, sources: tuple[Any, ...], begin: int, count: int, lanes: int) -> int:
    """Steps that take a cycle more, as operands' banks meet; 0 where no rule says so."""
    if not core.banked:
        return 0
    steps = conflicts(sources, of.dtype if of.takes is None else of.takes, begin, count, lanes)
    core.conflicts += steps
    return steps


def note(core: Any, pending: PendingOperation) -> None:
    """Of the colours that it reads: what room there is now."""
    for source in pending.sources:
        if isinstance(source, Fab):
            core.note(core.input_color(source))


def _narrow(raw: Any, dtype: Any) -> Any:
    return raw.view(dtype) if SIZES[dtype] == 4 else raw.astype(np.uint16).view(dtype)


def _widen(result: Any) -> Any:
    result = np.ascontiguousarray(result)
    if result.dtype.itemsize == 4:
        return result.view(np.uint32).copy()
    return result.view(np.uint16).astype(np.uint32)


def map_over(
    core: Any, function: Any, operands: tuple[Any, ...], target: Any, types: list[str]
) -> Iterator[Any]:  # fmt: skip
    """@map: the function of each element, in order. `types`: NumPy's, of its parameters and its result."""
    vectors = [vector for vector in (*operands, target) if isinstance(vector, Mem) and vector.extents]
    count = min((vector.extent for vector in vectors), default=1)
    reads = []
    for operand, kind in zip(operands, types, strict=False):
        if isinstance(operand, Mem):
            where = elements(core, operand, kind, 0, count)
            view = core.views[kind]
            reads.append((view, _positions(where)))
        elif isinstance(operand, Fab | FifoName):
            raise origin.failed(core, "@map of vectors of the fabric is not here: move it to memory first")
        else:
            reads.append((None, operand))
    writes = None if target is None else _positions(elements(core, target, types[-1], 0, count))
    out = None if target is None else core.views[types[-1]]
    core.t += COSTS.map_start
    for at in range(count):
        core.t += COSTS.map_step
        core.mapping = True  # its operations follow each other without a start
        result = yield from function(core, *(where if view is None else view[where[at]] for view, where in reads))
        if out is not None and writes is not None:
            out[writes[at]] = result
    core.mapping = False


def _positions(where: Any) -> Any:
    if isinstance(where, slice):
        return range(where.start, where.stop, where.step)
    return where


def held(core: Any, holds: Any) -> None:
    """@assert in the run."""
    if not holds:
        raise origin.failed(core, "@assert does not hold")


SPACE: dict[str, Any] = {
    "start": start, "map_over": map_over, "held": held, "Mem": Mem, "Fab": Fab, "indexed": indexed,
    "increment": increment, "set_base": set_base, "set_length": set_length, "set_stride": set_stride,
}  # fmt: skip
