"""A graph of operators on Arm cores: products by fmla in strips of columns, the rest in rows or stretches of them."""

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Annotated, Any

import numpy as np

from meshrt.arm.cache import CachePieces, stretch
from meshrt.arm.core import ArmCore, Team
from meshrt.arm.soc import Soc
from meshrt.models.errors import ModelError
from meshrt.models.graph import MOVES, Graph, Node, compute
from meshrt.options import FILE, HOST, WRITTEN, AtLeast
from meshrt.programs.arm.simd.choices import KINDS, lanes_of
from meshrt.programs.arm.simd.floats import product
from meshrt.programs.arm.simd.moves import moved, moves_of
from meshrt.programs.arm.simd.operators import ROWS, along, each, each_kernel
from meshrt.programs.arm.simd.vectors import units_of
from meshrt.programs.arm.split import equal
from meshrt.programs.arm.tiles import UNITS, plan, row_tiles
from meshrt.programs.feeding import check_outputs, feeds_of, graph_of, told

MACHINE = "arm"
Array = np.ndarray


def run(
    soc: Soc,
    *,
    model: Annotated[str | None, "a folder that `meshrt import` made of an ONNX file", FILE] = None,
    sizes: Annotated[str | None, "of what the graph has a name for, as S=4,T=9"] = None,
    inputs: Annotated[str | None, "FILE.npz with arrays by the names of inputs  [default: random ones]", FILE] = None,
    outputs: Annotated[str | None, "FILE.npz to write the outputs to", HOST, WRITTEN] = None,
    seed: Annotated[int | None, "of the random inputs  [default: 0]", AtLeast(0)] = None,
) -> dict[str, Any]:
    """Run a graph of operators in float32, each of them shared out to the cores.

    A product's columns are cut into strips for the cores, and computed by fmla in micro-tiles; what lies between runs
    over stretches of neighbouring numbers. The report has the largest error of the outputs against float64.
    """
    check_outputs(outputs, soc.payload)
    graph = graph_of(model)
    feeds = feeds_of(graph, sizes, inputs, seed)
    results = run_operators(soc, graph, feeds)
    return {"operators": len(graph.nodes)} | (told(graph, feeds, results, outputs) if soc.payload else {})


def run_operators(soc: Soc, graph: Graph, feeds: dict[str, Array]) -> dict[str, Array | None]:
    """The outputs, at rank 0. Buffers go when nothing needs them any more. ModelError, LimitError."""
    values = {name: np.asarray(value) for name, value in {**graph.constants, **feeds}.items()}
    buffers = {name: soc.buffer(name, max(value.nbytes, 1)) for name, value in values.items()}
    last = {name: at for at, node in enumerate(graph.nodes) for name in node.inputs}
    with soc.phase("graph"):
        for at, node in enumerate(graph.nodes):
            given = [values[name] for name in node.inputs]
            whole = np.asarray(_shape_of(node, given))
            buffers[node.output] = soc.buffer(node.output, max(whole.nbytes, 1))
            sources, target = [buffers[name] for name in node.inputs], buffers[node.output]
            values[node.output] = operator_of(node, given, whole)(soc, node, given, sources, target, whole)
            for name in {*node.inputs, node.output} - {*graph.outputs, *graph.constants}:
                if last.get(name, at) == at:
                    soc.free(name)
                    values.pop(name)
    return {name: values[name] if soc.control.rank == 0 else None for name in graph.outputs}


def operator_of(node: Node, given: Sequence[Array], whole: Array) -> Callable[..., Array]:
    """What runs a node. ModelError where no instructions do."""
    said = ", ".join(str(operand.dtype) for operand in given)
    if node.op == "MatMul" and said == "float32, float32":
        return matmul
    if not whole.size:
        return nothing
    if node.op in MOVES or node.op == "Identity":
        return moving
    if node.op in ROWS and whole.dtype == np.float32:
        return rows
    if each_kernel(node.op, kinds_of(given)) is None:
        raise ModelError(f"node {node.name} ({node.op}) of {said}: Arm cores have no instructions for it here")
    return numbers


def _shape_of(node: Node, given: Sequence[Array]) -> Array:
    """What a node makes, in its shape and type: of a product no numbers yet."""
    if node.op != "MatMul":
        return compute(node, given)
    a, b = given
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ModelError(f"node {node.name} (MatMul) does not go with {list(a.shape)} and {list(b.shape)}")
    try:
        front = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ModelError(f"node {node.name} (MatMul): {list(a.shape)} and {list(b.shape)} have other batches") from None
    return np.empty((*front, a.shape[-2], b.shape[-1]), np.float32)


def matmul(soc: Soc, node: Node, given: Sequence[Array], sources: Sequence[int], target: int, whole: Array) -> Array:
    """[.., m, k] [.., k, n] in units of some columns of one matrix, as many as there are cores or more."""
    unit = UNITS["fmla"]
    tile = plan(unit, soc.device.registers, 16)
    front, (rows, columns), inner = whole.shape[:-2], whole.shape[-2:], given[0].shape[-1]
    count = prod(front)
    a = np.broadcast_to(given[0], (*front, rows, inner)).reshape(count, rows, inner)
    b = np.broadcast_to(given[1], (*front, inner, columns)).reshape(count, inner, columns)
    strips = max(min(ceil(columns / tile.columns), ceil(soc.count / count)), 1)
    width = tile.columns * ceil(ceil(columns / strips) / tile.columns)
    strips = ceil(columns / width)
    b = np.pad(b, ((0, 0), (0, 0), (0, strips * width - columns)))
    passes, shared = len(row_tiles(rows, tile.rows)), [prod(operand.shape[:-2]) == 1 for operand in given]

    def work(team: Team) -> Array | None:
        mine = [number for _, units in team for number in units]
        for core, units in team:
            for number in units:
                matrix, strip = divmod(number, strips)
                for panel in range(strip * width, min((strip + 1) * width, columns), tile.columns):
                    for _ in range(passes):  # a panel of columns stays while the rows go by
                        core.caches.read(stretch(sources[1], 0 if shared[1] else matrix, 4 * inner * panel,
                                                 4 * inner * min(panel + tile.columns, columns)))  # fmt: skip
                    core.caches.read(stretch(sources[0], 0 if shared[0] else matrix, 0, 4 * rows * inner))
                    core.caches.write(
                        stretch(target, matrix, 4 * rows * panel, 4 * rows * min(panel + tile.columns, columns))
                    )
        x = w = None
        if soc.payload:
            x = np.stack([a[number // strips] for number in mine])
            w = np.stack(
                [b[number // strips, :, number % strips * width : (number % strips + 1) * width] for number in mine]
            )
        return product(team, unit, tile, x, w, (rows, inner, width))

    parts = [part for _, part in soc.parallel(equal(count * strips, soc.count), work) if part is not None]
    if not parts:
        return np.zeros_like(whole)
    by_strip = np.concatenate(parts).reshape(count, strips, rows, width).swapaxes(1, 2)
    out: Array = by_strip.reshape(count, rows, -1)[..., :columns].reshape(whole.shape)
    return np.ascontiguousarray(out)


def kinds_of(given: Sequence[Array]) -> str:
    return "".join(KINDS[operand.dtype] for operand in given)


def numbers(soc: Soc, node: Node, given: Sequence[Array], sources: Sequence[int], target: int, whole: Array) -> Array:
    """What works on each number, on the same stretch of neighbours of every operand at each core."""
    kinds = kinds_of(given)
    kernel, lanes = each_kernel(node.op, kinds), lanes_of(node.op, kinds)
    assert kernel is not None, "operator_of has looked"
    steps = ceil(whole.size / lanes)
    operands = [_steps(np.broadcast_to(operand, whole.shape), lanes) for operand in given]
    repeated = [at for at, operand in enumerate(given) if operand.size < whole.size]
    places = {at: np.arange(given[at].size).reshape(given[at].shape) for at in repeated}

    def work(team: Team) -> Array | None:
        for core, units in team:
            share = units[0] / steps, (units[-1] + 1) / steps
            for at, (buffer, operand) in enumerate(zip(sources, given, strict=True)):
                if at not in places:
                    core.caches.read(_share(buffer, operand, share))
                    continue
                needed = np.broadcast_to(places[at], whole.shape).flat[units[0] * lanes : (units[-1] + 1) * lanes]
                begin, end = int(needed.min()), int(needed.max()) + 1  # what all cores' stretches need each reads
                core.caches.read(stretch(buffer, 0, begin * operand.itemsize, end * operand.itemsize))
            core.caches.write(_share(target, whole, share))
        own = [operand[units_of(team)] if soc.payload else None for operand in operands]
        return each(team, kernel, own, lanes * whole.itemsize)

    return _joined(soc.parallel(equal(steps, soc.count), work), whole)


def moving(soc: Soc, node: Node, given: Sequence[Array], sources: Sequence[int], target: int, whole: Array) -> Array:
    """What moves numbers: each core makes some neighbouring registers of the result."""
    moves = moves_of(node, given, whole)
    steps, moving = len(moves.numbers), given[: len(moves.begins) - 1]

    def work(team: Team) -> Array | None:
        for core, units in team:
            for operand, buffer in enumerate(sources[: len(moving)]):
                core.caches.read(moves.read(units, operand, buffer))
            share = units[0] / steps, (units[-1] + 1) / steps
            touch(core, share, given[len(moving) :], sources[len(moving) :], target, whole)
        return moved(team, moves, moving if soc.payload else None)

    return _joined(soc.parallel(equal(steps, soc.count), work), whole)


def nothing(soc: Soc, node: Node, given: Sequence[Array], sources: Sequence[int], target: int, whole: Array) -> Array:
    """There is no number in the result."""
    return whole


def _joined(parts: Sequence[tuple[list[int], Array | None]], whole: Array) -> Array:
    """The bytes of all cores as the result; by shape what it was."""
    arrays = [part for _, part in parts if part is not None]
    if not arrays:
        return whole
    flat: Array = np.concatenate(arrays).reshape(-1).view(whole.dtype)
    return flat[: whole.size].reshape(whole.shape)


def rows(soc: Soc, node: Node, given: Sequence[Array], sources: Sequence[int], target: int, whole: Array) -> Array:
    """What works along axes: rows of what is along them are shared out to the cores."""
    ndim = given[0].ndim
    axes = [node.attributes["axis"]] if node.op == "Softmax" else [*node.attributes["axes"]]
    others = [axis for axis in range(ndim) if axis not in axes]
    turned = given[0].transpose(*others, *axes)
    sizes = turned.shape[: len(others)]
    lying = turned.reshape(prod(sizes), -1)

    def work(team: Team) -> Array | None:
        for core, units in team:
            touch(core, (units[0] / len(lying), (units[-1] + 1) / len(lying)), given, sources, target, whole)
        return along(team, node.op, lying.shape[1], lying[units_of(team)] if soc.payload else None)

    parts = [part for _, part in soc.parallel(equal(len(lying), soc.count), work) if part is not None]
    if not parts:
        return whole
    out = np.concatenate(parts)
    if node.op == "Softmax":
        out = out.reshape(turned.shape).transpose(*np.argsort([*others, *axes]))
    return np.ascontiguousarray(out).reshape(whole.shape)


def _steps(operand: Array, lanes: int) -> Array:
    """All its numbers one after the other, [steps, lanes], filled up with ones, which may be divided by."""
    flat = np.ones(lanes * ceil(operand.size / lanes), operand.dtype)
    flat[: operand.size] = operand.reshape(-1)
    return flat.reshape(-1, lanes)


def touch(
    core: ArmCore, share: tuple[float, float], given: Sequence[Array], sources: Sequence[int], target: int, whole: Array
) -> None:
    """A share of each operand that is read, and of the result that is written, from one part of it to another."""
    for buffer, operand in zip(sources, given, strict=True):
        core.caches.read(_share(buffer, operand, share))
    core.caches.write(_share(target, whole, share))


def _share(buffer: int, operand: Array, share: tuple[float, float]) -> CachePieces:
    return stretch(buffer, 0, int(share[0] * operand.nbytes), max(int(share[1] * operand.nbytes), 1))
