"""How an instruction runs: operands and result cut to its mask, its time on its engine, its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.dtypes import rounded
from meshrt.neuron.store import starts
from meshrt.neuron.timeline import ComputeEngine
from meshrt.nki.session import Session, from_here, session
from meshrt.nki.tensors.pattern import kept_extents, squeezed
from meshrt.nki.tensors.patternview import PatternView
from meshrt.nki.tensors.tensor import Tensor
from meshrt.records import dataclass

Extents = tuple[int, ...]
Compute = Callable[..., np.ndarray]  # of the operands' numbers


def masked(mask: Any, shape: Extents) -> tuple[Extents | None, np.ndarray | None]:
    """What a mask leaves of a shape: the first so many along each axis, or a truth value for each element."""
    if mask is None or mask is True:
        return None, None
    extents = kept_extents(mask, shape)
    if extents is not None:
        return None if extents == shape else extents, None
    return None, np.broadcast_to(np.asarray(mask, np.bool_), shape)


@dataclass(frozen=True, eq=False)
class Emission:
    """An instruction that was asked for, and what its mask leaves of it. Of `shape` is the result, of `over` what the
    instruction works on; `extents` and `out_extents` are what the mask leaves of the two, and None all; `scattered` has
    a truth value for each element where that is no rectangle.
    """

    name: str
    engine: ComputeEngine | None
    cycles: Callable[[Extents], float]
    reads: Sequence[Tensor]
    compute: Compute
    shape: Extents
    over: Extents
    extents: Extents | None
    out_extents: Extents | None
    scattered: np.ndarray | None
    whole_reads: bool
    sums: Sequence[Any]
    given: bool  # a place for the result


def emit(
    name: str, engine: ComputeEngine | None, cycles: Callable[[Extents], float], reads: Sequence[Tensor],
    shape: Extents, dtype: np.dtype[Any], compute: Compute, *, dst: Tensor | None = None, mask: Any = None,
    memory: str = "sbuf", adds: bool = False, over: Extents | None = None,
    result_extents: Callable[[Extents], Extents] | None = None, always_add: bool = False, whole_reads: bool = False,
    sums: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """Run an instruction, into `dst` or into a result that gets its place with the assignment that follows.

    cycles: from the extents that the mask leaves of `over` (the shape that it works on; the result's unless given).
    whole_reads: the mask is of the result alone; operands are read whole.
    compute: from the operands' numbers to the result's. adds: a product, which may add to what PSUM holds.
    sums: operands that the result, if it is written over them, gathers in any order: what loops carry so is no matter.
    """
    launch = session()
    core = launch.core
    over = shape if over is None else over
    for tensor in reads:
        tensor.settle()
    extents, scattered = masked(mask, over)
    if scattered is not None and result_extents is not None:
        raise UsageError(
            f"{name}: its mask leaves no rectangle, and its result has another shape: set what it leaves out with "
            "nl.where or nisa.affine_select before"
        )
    out_extents = extents if extents is None or result_extents is None else result_extents(extents)
    emission = Emission(name, engine, cycles, reads, compute, shape, over, extents, out_extents, scattered,
                        whole_reads, sums, given=dst is not None)  # fmt: skip

    def run(target: Tensor, add: bool) -> None:
        _run(launch, emission, target, add or always_add)

    if dst is not None:
        core.settle()
        run(dst, always_add)
        return dst
    result = Tensor(getattr(core, memory), dtype, shape=_on_chip(shape), pending=from_here(run), adds=adds)
    return core.defer(result)


def _run(launch: Session, emission: Emission, target: Tensor, add: bool) -> None:
    """Its time, its numbers and what is noted of it, once it is known where the result goes. UsageError."""
    core, left = launch.core, emission.over if emission.extents is None else emission.extents
    fresh = target.home is not None and target.home.store.writes == 0
    if 0 in left:  # all of it is masked off
        if fresh and not emission.given:
            poison(target)
        return
    kept = None if emission.whole_reads else emission.extents
    sources = [_source(tensor, kept, emission.scattered) for tensor in emission.reads]
    if fresh and not emission.given and emission.out_extents is not None:
        poison(target)
    written = _target(target, emission.shape, emission.out_extents)
    _check_memories(emission.name, emission.engine, launch, emission.reads, target)
    _check_reads(launch, emission, sources, written)
    if add := add and written.rewrites():
        written.check_written(f"{emission.name}, which adds,")
    if emission.engine is not None:
        core.issue(emission.engine, emission.name, emission.cycles(left), _read(emission, sources, target), written)
    if core.payload:
        written.write(_numbers(emission, sources, target, written, add, fresh))
    stamp(launch, target, written)


def _read(emission: Emission, sources: Sequence[PatternView], target: Tensor) -> list[PatternView]:
    """Operands, and the tiles of indices that say where these and the result lie."""
    return [*sources, *(index for tensor in (*emission.reads, target) for index in tensor.indices)]


def _check_reads(launch: Session, emission: Emission, sources: Sequence[PatternView], written: PatternView) -> None:
    """Every operand has been written, and none by an earlier iteration of a loop that says that it carries nothing."""
    for tensor, source in zip(emission.reads, sources, strict=True):
        source.check_written(emission.name)
        if not (any(tensor is summed for summed in emission.sums) and _same(source, written)):
            check_carried(launch, source, emission.name)


def _numbers(
    emission: Emission, sources: Sequence[PatternView], target: Tensor, written: PatternView, add: bool, fresh: bool
) -> np.ndarray:
    """What is written: of the result's dtype, and of the shape that the mask leaves."""
    with np.errstate(all="ignore"):
        values = emission.compute(*(source.data for source in sources))
        if emission.whole_reads and emission.extents is not None:
            values = values[tuple(slice(extent) for extent in emission.extents)]
        values = values.reshape(written.shape) if values.size == written.data.size else values
        if add:
            values = values + written.data
        values = rounded(values, target.dtype)
    if emission.scattered is not None and emission.scattered.shape == emission.shape:
        values = np.where(emission.scattered, values, _nothing(target) if fresh else written.data)
    return values


def _on_chip(shape: Extents) -> Extents:
    return (*shape, 1) if len(shape) == 1 else shape


def _source(tensor: Tensor, extents: Extents | None, scattered: np.ndarray | None) -> PatternView:
    if scattered is not None and tensor.pattern is not None and tensor.pattern.reaches:
        listed = tensor.pattern.listed()
        safe = replace(tensor.pattern, reaches=(), elements=np.maximum(listed, 0))
        return Tensor(tensor.buffer, tensor.dtype, home=tensor.home, pattern=safe).in_store()
    return tensor.in_store(extents)


def _target(target: Tensor, shape: Extents, extents: Extents | None) -> PatternView:
    """The result's place, of the size that the mask leaves. UsageError."""
    full = target.pattern.sizes if target.pattern is not None else target.shape
    if squeezed(full) != squeezed(shape) or (target.buffer.on_chip and full[0] != shape[0]):
        raise UsageError(f"a result of shape {list(shape)} does not fit a tile of shape {list(full)}")
    if extents is None:
        return target.in_store()
    if len(full) == len(shape):
        return target.in_store(extents)
    kept = iter([extent for extent, size in zip(extents, shape, strict=True) if size != 1])
    return target.in_store(tuple(1 if size == 1 else next(kept) for size in full))


def _check_memories(
    name: str, engine: ComputeEngine | None, launch: Session, reads: Sequence[Tensor], target: Tensor
) -> None:
    """UsageError for memories that an engine does not reach."""
    if engine is None:
        return
    core = launch.core
    for way, tensor in (*(("read", tensor) for tensor in reads), ("write", target)):
        memory = tensor.buffer.name
        if memory == "hbm":
            raise UsageError(f"{name} cannot {way} HBM: load it to SBUF first" if way == "read" else
                             f"{name} cannot write HBM: store its result from SBUF")  # fmt: skip
        check_start(name, "an operand" if way == "read" else "the result", tensor)
        if engine is core.gpsimd and memory == "psum" and name != "affine_select":  # which the samples run so
            raise UsageError(f"{name} on the GpSimd engine cannot {way} PSUM: go by SBUF, or take another engine")


def partitions_of(tensor: Tensor) -> tuple[int, int]:
    """The first partition of a tile on the chip, and how many lie between one and the next; 0, 1 where it is listed."""
    pattern, home = tensor.pattern, tensor.home
    if pattern is None or home is None or pattern.elements is not None or not tensor.buffer.on_chip:
        return 0, 1
    row = prod(home.store.shape[1:]) * home.store.dtype.itemsize // tensor.dtype.itemsize
    return pattern.offset // row, pattern.strides[0] // row


def check_start(name: str, which: str, tensor: Tensor) -> None:
    """UsageError for an operand at partitions where engines do not start (0, 32, 64 or 96), or that leaves some out."""
    (start, step), rows = partitions_of(tensor), tensor.shape[0]
    if rows > 1 and step > 1:
        raise UsageError(f"{name}: {which} takes one partition in {step}; engines take those that follow one another")
    if start and start not in (allowed := starts(rows)):
        raise UsageError(
            f"{name}: {which} has {rows} partition{'s' * (rows > 1)} from {start} on; so many start at "
            + " or ".join(map(str, allowed))
        )


def poison(target: Tensor) -> None:
    """What a mask leaves out of a new tile is undefined: NaN, or the largest whole number, so that it is seen."""
    assert target.home is not None
    store = target.home.store
    if store.buffer.payload:
        store.data[...] = _nothing(target)
    store.full = True


def _nothing(target: Tensor) -> Any:
    kind = target.dtype.kind
    return np.iinfo(target.dtype).max if kind in "iu" else False if kind == "b" else np.float32(np.nan)


# ---- what a loop says of its iterations


def _same(view: PatternView, other: PatternView) -> bool:
    a, b = view.pattern, other.pattern
    return view.store is other.store and (a.sizes, a.strides, a.offset) == (b.sizes, b.strides, b.offset)


def check_carried(launch: Session, source: PatternView, name: str) -> None:
    """Note a read of what an earlier iteration of a running affine_range wrote."""
    if not launch.loops:
        return
    stamps = launch.stamps.get(source.store)
    if stamps is None:
        return
    seen = source.of(stamps)
    for loop in launch.loops:
        if not loop.ordered and bool(((seen > loop.began) & (seen <= loop.iteration)).any()):
            launch.note(
                f"{name} reads what an earlier iteration of an affine_range wrote: its iterations may run in any "
                "order; say nl.sequential_range"
            )
            return


def stamp(launch: Session, target: Tensor, view: PatternView) -> None:
    """Remember the step that wrote these elements, where a loop is running that the tile is older than."""
    launch.steps += 1
    home = target.home
    if not launch.loops or home is None or home.born >= launch.loops[-1].iteration:
        return
    store = view.store
    stamps = launch.stamps.get(store)
    if stamps is None:
        stamps = launch.stamps[store] = np.zeros(store.shape, np.int32)
    view.mark(stamps, launch.steps)
