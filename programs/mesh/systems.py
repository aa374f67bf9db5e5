"""Systems that run LLaMA on a mesh: what a run asks of the machine, and how WaferLLM, T10 and Ladder do it.

Prefill and decode are written once. Their products and sums, all of their communication, go through the functions
here; so every system computes the same, and what it costs is measured.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import allreduce, ktree
from meshrt.mesh.collectives.rings import Rings, interleaved_rings
from meshrt.mesh.collectives.trees import Combine, Tree
from meshrt.programs.mesh.chunks import Chunks
from meshrt.programs.mesh.headgroups import group_rings
from meshrt.programs.mesh.meshgemm import meshgemm, meshgemm_t
from meshrt.records import dataclass

System = Literal["waferllm", "t10", "t10-inferred", "ladder", "ladder-inferred"]
Programs = System | Literal["published"]  # the last by --as-published, with what else that says


@dataclass(frozen=True, eq=False)
class Products:
    """C = A B and C = A B^T on tiles [bh, bw, rows, columns, .., Mt, Kt], of matrices that are cut into P x P tiles.

    `heads` and `heads_t` are those of attention: inside each group of heads, scores being cut along the group's x.
    `gemm_t` takes `multiply(a, b, total)`, which may stand in for adding the product of two tiles to the total.
    """

    gemm: Callable[..., np.ndarray]
    gemm_t: Callable[..., np.ndarray]
    heads: Callable[..., np.ndarray]
    heads_t: Callable[..., np.ndarray]


@dataclass(frozen=True, eq=False)
class Sums:
    """Allreduce of tiles [bh, bw, *tile], f(tiles, combine=np.add): along x, y, x inside a group of heads.

    WaferLLM's put the sum in place of the tiles; those who call it do not need them any more.
    """

    x: Callable[..., np.ndarray]
    y: Callable[..., np.ndarray]
    heads: Callable[..., np.ndarray]
    by_rows: bool = False  # can `heads` leave rows out, by a keyword `lines` (bool [H])?
    loads: Callable[[np.ndarray], None] | None = None  # a core fetches its weights before it multiplies by them


def _not_installed(*_: Any) -> np.ndarray:
    raise ValueError("this product or sum is not installed in this part of the run")


NO_PRODUCTS = Products(_not_installed, _not_installed, _not_installed, _not_installed)
NO_SUMS = Sums(_not_installed, _not_installed, _not_installed)


def open_system(
    stack: ExitStack, system: Programs, block: Block, chunks: Chunks, phases: int, rings: Rings | None,
    sample: int | None = None, bare: bool = False, dtype: Any = np.float32,
) -> tuple[Products, Sums]:  # fmt: skip
    """What a system uses in prefill, where there are rings, or else in decode; installed until the stack is left.

    The K-trees of WaferLLM have `phases`; `bare`: those along x alone, for prefill of a model with experts, where
    `open_products` has the rest. Only so many steps of a product run if there is a `sample` and no payloads, and the
    last is counted for the rest. `dtype` is that of storage, in which the published programs add up.
    """
    if system == "published":
        return _published(stack, block, chunks, rings, sample, dtype)
    if system != "waferllm":
        return _on_a_crossbar(stack, system, block, chunks, sample)
    if bare:
        return NO_PRODUCTS, open_sums(stack, block, chunks, "x", phases, heads=False)
    axes = "xy" if rings is None else "x"
    products = NO_PRODUCTS if rings is None else _products(stack, block, chunks, rings, sample)
    return products, open_sums(stack, block, chunks, axes, phases)


def _published(
    stack: ExitStack, block: Block, chunks: Chunks, rings: Rings | None, sample: int | None, dtype: Any
) -> tuple[Products, Sums]:
    from meshrt.programs.mesh.published import onehead  # few runs need it

    if rings is None:
        x, y = (onehead.open_sum(stack, block, axis, 2, dtype) for axis in "xy")
        return NO_PRODUCTS, Sums(x, y, x)
    x, chains = onehead.open_sum(stack, block, "x", 1, dtype), onehead.open_chains(stack, block)
    ours = _products(stack, block, chunks, rings, sample)

    def gemm(a: np.ndarray, b: np.ndarray, parts: int | None = None) -> np.ndarray:
        """Of a layer's matrices; without parts of the head, which the published programs do not have."""
        return ours.gemm(a, b) if parts is None else onehead.product(block, rings, a, b, parts, sample)

    products = Products(
        gemm, ours.gemm_t, partial(onehead.mixed_values, block, rings, sample=sample),
        partial(onehead.scores, block, rings, chains, sample=sample),
    )  # fmt: skip
    return products, Sums(x, _not_installed, x)


def _on_a_crossbar(
    stack: ExitStack, system: System, block: Block, chunks: Chunks, sample: int | None
) -> tuple[Products, Sums]:
    from meshrt.mesh.exchange.exchange import crossbar  # most runs need none of it, and start sooner without
    from meshrt.programs.mesh.baselines import inferred, ladder, ladderinferred, t10
    from meshrt.programs.mesh.baselines.groups import Groups

    systems = {"t10": t10, "t10-inferred": inferred, "ladder": ladder, "ladder-inferred": ladderinferred}
    theirs: Any = systems[system]
    bar = stack.enter_context(crossbar(block))
    gemm, gemm_t = (partial(function, block, bar, sample=sample) for function in (theirs.gemm, theirs.gemm_t))
    groups = Groups(chunks.group_width, chunks.groups)
    x, y = (partial(theirs.allreduce, block, bar, axis) for axis in "xy")
    loads = partial(theirs.load_weights, block, bar) if theirs is ladderinferred else None
    return Products(gemm, gemm_t, partial(gemm, groups=groups), partial(gemm_t, groups=groups)), Sums(
        x, y, partial(x, groups=groups), loads=loads
    )


def _products(stack: ExitStack, block: Block, chunks: Chunks, rings: Rings, sample: int | None) -> Products:
    gemm, gemm_t = (partial(function, block, rings, sample=sample) for function in (meshgemm, meshgemm_t))
    if chunks.groups == 1:
        return Products(gemm, gemm_t, gemm, gemm_t)
    inner = stack.enter_context(group_rings(block, rings, chunks))
    heads = partial(meshgemm, block, inner, consume=True, sample=sample)
    return Products(gemm, gemm_t, heads, partial(meshgemm_t, block, inner, sample=sample))


def open_products(
    stack: ExitStack, block: Block, chunks: Chunks, sums: Sums, sample: int | None
) -> tuple[Products, Sums]:  # fmt: skip
    """WaferLLM's products, and sums with those of heads, for a part of a layer; installed until the stack is left.

    Beside what brings tokens to experts the tables have no room for them.
    """
    products = _products(stack, block, chunks, stack.enter_context(interleaved_rings(block)), sample)
    if chunks.groups == 1:
        return products, replace(sums, heads=sums.x)
    return products, replace(sums, heads=_sums_of_heads(stack, block, chunks, 1))


def open_sums(
    stack: ExitStack, block: Block, chunks: Chunks, axes: str, phases: int, heads: bool = True
) -> Sums:  # fmt: skip
    """WaferLLM's sums along the axes, "x" or "xy", installed until the stack is left; those of heads as well.

    Beside the rings of prefill there is no room for a second phase of the trees on head groups, 24 entries being the
    limit of a WSE-2: there they have one.
    """
    along: dict[str, Callable[..., np.ndarray]] = {
        axis: partial(_in_place, block, stack.enter_context(ktree(block, axis, phases))) for axis in axes
    }
    of_heads = along["x"]
    if chunks.groups > 1:
        of_heads = _sums_of_heads(stack, block, chunks, phases if axes == "xy" else 1) if heads else _not_installed
    return Sums(along["x"], along.get("y", _not_installed), of_heads, by_rows=True)


def _sums_of_heads(stack: ExitStack, block: Block, chunks: Chunks, phases: int) -> Callable[..., np.ndarray]:
    inner = ktree(block, "x", phases, stretches=(chunks.groups, chunks.group_width))
    return partial(_in_place, block, stack.enter_context(inner))


def _in_place(
    block: Block, tree: Tree, tiles: np.ndarray, combine: Combine = np.add, lines: np.ndarray | None = None
) -> np.ndarray:
    return allreduce(block, tree, tiles, combine, lines, tiles)
