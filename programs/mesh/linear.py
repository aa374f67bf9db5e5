"""x W on the mesh, whatever the form of W: the matrices that multiply one input, side by side.

What comes first is one product: the columns of those that are whole and of the U of those in two factors, side by side,
so that x goes round once for all of them, and in decode one sum brings all that they make of x, and the norm's sum of
squares. Then every V has a product of its own, since its input is its own: side by side in one matrix, most of what
moved would be zeros. V's of one shape could go round together in prefill, as heads do: that is a tenth fewer messages,
but no cycle less (LLaMA-3-8B's MLP at ratio 0.4 on 64 x 64 and 180 x 180 cores, wse2), and more of them are in memory
at a time. U V is never made: the factors are all that is kept and all that moves.

In prefill all that is MeshGEMMs, L_y E_x -> L_y r_x -> L_y N_x. In decode a product changes the axis that its input is
cut on, so that two of them give back the one there was. Where that is the wrong one, the numbers between, which are
few, are brought to the other axis by one more sum: the cores that have the chunks of their own line give them to all.

    q, k, v       E_y --U[E_y, r_x]--> y: r_x --along x--> x: r_y --V[r_y, N_x]--> y: heads_x
    o             heads_x --U[N_x, r_y]--> x: r_y --along y--> y: r_x --V[r_x, E_y]--> x: E_y
    MLP           E_y --U[E_y, r_x]--> y: r_x --V[r_x, F_y]--> x: F_y --U[F_y, r_x]--> y: r_x --V[r_x, E_y]--> x: E_y

The MLP comes out right by itself where all its matrices are in factors: four sums, where bringing it round would take
six. Where one is whole, gate and up are as q and k, and down as o.

Quantized matrices are as whole ones, of codes (codes/packed.py). Where their compensators have products of their own,
what comes first has the latent numbers of each behind the columns of all, in the same sum.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from meshrt.mesh.block import Block
from meshrt.programs.mesh.codes.packed import Packed, Tiles
from meshrt.programs.mesh.codes.whole import WholeCodes, finish_token, largest, prompt_product, token_codes
from meshrt.programs.mesh.meshgemm import zeros
from meshrt.programs.mesh.systems import Sums
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class Member:
    """One matrix of several side by side: `width` columns of what is multiplied first, a chunk of W's or of U's."""

    width: int
    rank: int | None = None
    second: np.ndarray | None = None  # V [rt, Nt]


@dataclass(frozen=True, eq=False)
class Linear:
    """Matrices with one input, as cores have them: tiles [bh, bw, rows, columns, *tile].

    `turned` says of what comes first, and of the V, whether in decode their rows lie along x and their columns along y.
    """

    first: Tiles  # [Kt, widths of all parts]
    parts: tuple[Member, ...]
    turned: tuple[bool, bool]
    aligned: bool = False  # placed as the published programs have them: those are multiplied one after the other

    @cached_property
    def whole(self) -> bool:
        """What comes first is all."""
        if isinstance(self.first, Packed):
            return not self.first.latent
        return all(part.second is None for part in self.parts)

    def split(self, tiles: np.ndarray) -> list[np.ndarray]:
        """What comes first, or was made by it, [.., widths of all parts], part by part."""
        return np.split(tiles, np.cumsum([part.width for part in self.parts])[:-1], axis=-1)


def product(
    block: Block, gemm: Callable[..., np.ndarray], x: np.ndarray, w: Linear,
    add_x: Callable[..., np.ndarray] | None = None,
) -> np.ndarray:  # fmt: skip
    """x W in prefill: L_y K_x to L_y N_x, [bh, bw, rows, columns, Lt, Nt] with all matrices side by side.

    `add_x` is the allreduce along x, which whole numbers need; experts have none.
    """
    if isinstance(w.first, WholeCodes):
        assert add_x is not None
        return prompt_product(block, gemm, add_x, x, w.first)
    first = gemm(x, w.first, len(w.parts)) if w.aligned else gemm(x, w.first)
    if w.whole:
        return first
    if isinstance(w.first, Packed):
        return w.first.finish(block, first, w.first.data[:, :, :1])
    outs = [
        tiles if part.second is None else gemm(tiles, part.second)
        for tiles, part in zip(w.split(first), w.parts, strict=True)
    ]
    return outs[0] if len(outs) == 1 else block.memory.keep("products side by side", np.concatenate(outs, axis=-1))


# ---------------------------------------------------------------------------------------------------------- decode


def along(
    block: Block, x: np.ndarray, w: Tiles, turned: bool, total: np.ndarray | None = None,
    cores: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Each core's share of x W: [bh, bw, rows, Kt] -> [bh, bw, columns, Nt] of W[K_y, N_x], to be summed along y.

    `turned`: [bh, bw, columns, Kt] -> [bh, bw, rows, Nt] of W[K_x, N_y], to be summed along x. With a total it is added
    to that. `cores` are those that multiply, if not all do.
    """
    x, over = (x[:, :, None, :, None], 3) if turned else (x[:, :, :, None, None], 2)
    if isinstance(w, Packed):
        if total is None:
            total = zeros(block, "product", (w.shape[2 if turned else 3], w.shape[-1]), w.sum_dtype)
        return w.multiply(block, x, total[..., None, :], over, cores)[..., 0, :]
    result = block.matmul(x, w, None if total is None else total[..., None, :], over, cores)
    return result[..., 0, :]


def loaded(sums: Sums, w: Linear) -> None:
    """Cores fetch these weights, where a system has them to."""
    if sums.loads is not None and isinstance(w.first, np.ndarray):
        sums.loads(w.first)


def shares(block: Block, sums: Sums, x: np.ndarray, w: Linear) -> tuple[np.ndarray, np.ndarray | None]:
    """Each core's share of what comes first of x W, as `along` has it, and the scale of x if that is put into codes."""
    turned = w.turned[0]
    if not isinstance(w.first, WholeCodes):
        return along(block, x, w.first, turned), None
    most = None
    if w.first.activations == "row":
        most = (sums.x if turned else sums.y)(largest(block, x, (2, 3)), np.maximum)
    codes, scale = token_codes(block, x, w.first, turned, most)
    return along(block, codes, w.first, turned), scale


def second(block: Block, sums: Sums, w: Linear, first: np.ndarray, scale: np.ndarray | None = None) -> np.ndarray:
    """x W from what came first, [bh, bw, places, widths], the same all along the other axis; so is what is found."""
    if isinstance(w.first, WholeCodes):
        return finish_token(block, w.first, w.turned[0], first, scale)
    if w.whole:
        return first
    across, turned = w.turned
    if isinstance(w.first, Packed):
        tiles = w.first.data[:, :, :, 0] if across else w.first.data[:, :, 0]
        return w.first.finish(block, first[..., None, :], tiles)[..., 0, :]
    latents = [latent for latent, part in zip(w.split(first), w.parts, strict=True) if part.second is not None]
    if across == turned:
        ends = np.cumsum([latent.shape[-1] for latent in latents])[:-1]
        latents = np.split(to_other_axis(block, sums, np.concatenate(latents, axis=-1), w), ends, axis=-1)
    factors = [part.second for part in w.parts if part.second is not None]
    ends = np.cumsum([factor.shape[-1] for factor in factors])
    shares = zeros(block, "products of factors", (factors[0].shape[2 if turned else 3], int(ends[-1])))
    for latent, factor, end in zip(latents, factors, ends, strict=True):
        along(block, latent, factor, turned, shares[..., end - factor.shape[-1] : end])
    del latents
    total = (sums.x if turned else sums.y)(shares)
    if len(factors) == len(w.parts):
        return total
    products = iter(np.split(total, ends[:-1], axis=-1))
    outs = [
        tiles if part.second is None else next(products) for tiles, part in zip(w.split(first), w.parts, strict=True)
    ]
    return block.memory.keep("products side by side", np.concatenate(outs, axis=-1))


def to_other_axis(block: Block, sums: Sums, x: np.ndarray, w: Linear) -> np.ndarray:
    """Numbers between factors: r_x, [bh, bw, columns, size], to r_y, [bh, bw, rows, size]; `turned`, from r_y to r_x.

    In every row, the cores that have the row's own chunks give them to all.
    """
    rows, columns = w.first.shape[2:4]
    turned, mesh = w.turned[0], block.mesh
    places, each = (columns, rows) if turned else (rows, columns)
    moved = zeros(block, "numbers between factors", (places, x.shape[-1]))
    if block.payload:
        to, of = (moved.swapaxes(0, 1), x.swapaxes(0, 1)) if turned else (moved, x)
        (low, begin) = (mesh.x0, mesh.y0) if turned else (mesh.y0, mesh.x0)
        line, place = np.divmod(np.arange(len(to) * places), places)
        core, slot = np.divmod(low * places + np.arange(len(to) * places), each)
        hosted = (core >= begin) & (core < begin + to.shape[1])
        line, place, core, slot = line[hosted], place[hosted], core[hosted] - begin, slot[hosted]
        to[line, core, place] = of[line, core, slot]
    return (sums.y if turned else sums.x)(moved)
