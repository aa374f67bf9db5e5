"""What block sizes promise before anything runs: intensity and SBUF (NeuronMM, section 4.2.1, eqs. 10 and 11).

M tokens, x [M, K], u [K, r], v [r, N]. The MLP (section 4.2.3) is two such kernels, [M, K] -> [M, N] with two pairs of
factors and back with one, so the same sums are written for any number of pairs that share x and result.
"""

from collections.abc import Iterator
from dataclasses import astuple
from itertools import product
from math import ceil
from typing import Any, Literal

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.device import NeuronDevice
from meshrt.programs.neuron.blocks import BlockSizes, F, P
from meshrt.records import dataclass

KernelName = Literal["fused", "mlp"]
ROWS = (P, 2 * P, F, 2 * F, 3 * F, *(F * 2**power for power in range(2, 8)))  # of a block along M: 128 to 65536
SIDES = (P, 2 * P, F, 2 * F, 4 * F)  # along K, r and N


@dataclass(frozen=True)
class Product:
    """x u v by `kernel`, or the MLP of three such products.

    `dtype` is that of the tensors, `sums` that of sums in SBUF: the same in the paper's formulas.
    """

    m: int
    k: int
    r: int
    n: int
    kernel: KernelName
    dtype: np.dtype[Any]
    sums: np.dtype[Any]

    @property
    def kernels(self) -> tuple[tuple[int, int, int], ...]:
        """Of each kernel that runs: (columns of its x, columns of its result, pairs of factors)."""
        return ((self.k, self.n, 1),) if self.kernel == "fused" else ((self.k, self.n, 2), (self.n, self.k, 1))

    @property
    def flops(self) -> int:
        return sum(2 * self.m * self.r * (k + n) * pairs for k, n, pairs in self.kernels)


@dataclass(frozen=True)
class Proposal:
    """Blocks, and what eqs. 10 and 11 say of them: operations a byte of HBM traffic, bytes of SBUF."""

    blocks: BlockSizes
    intensity: float
    sbuf_bytes: int


def traffic(work: Product, block_m: int) -> int:
    """Bytes between HBM and SBUF: x and the result once, u and v once for each strip of block_m rows.

    The denominator of eq. 10 with whole strips, ceil(M / B_M) of them.
    """
    strips = ceil(work.m / block_m)
    return work.dtype.itemsize * sum(
        work.m * (k + n) + strips * pairs * work.r * (k + n) for k, n, pairs in work.kernels
    )


def intensity(work: Product, block_m: int) -> float:
    """Eq. 10, operations a byte; 2 r / ((1 + r / B_M) s) where block_m divides M and one pair is multiplied."""
    return work.flops / traffic(work, block_m)


def peak_sbuf(work: Product, blocks: BlockSizes) -> int:
    """Eq. 11, bytes of SBUF: the larger of what the two phases of a kernel hold, of all kernels that run.

    Blocks are cut to the size of their matrix; each pair of factors has a strip and a block of the result. Where sums
    are wider than tiles there is a phase between, in which the strip is there twice. A block that is loaded while the
    one before it is in use (a double buffer) is not counted, and so a run takes more than this.
    """
    return max(_held(work, blocks, loaded=1))


def _held(work: Product, blocks: BlockSizes, loaded: int) -> list[int]:
    """Bytes of SBUF in each phase, with `loaded` copies of the blocks that come from HBM."""
    m, r = min(blocks.m, work.m), min(blocks.r, work.r)
    tile, wide = work.dtype.itemsize, work.sums.itemsize
    held = []
    for k_size, n_size, pairs in work.kernels:
        k, n, strip = min(blocks.k, k_size), min(blocks.n, n_size), pairs * m * work.r
        held.append(strip * wide + loaded * (m * k + k * r) * tile)
        held.append(strip * tile + pairs * m * n * wide + loaded * r * n * tile)
        held.append(0 if wide == tile else strip * (wide + tile))
    return held


def balance(device: NeuronDevice, dtype: np.dtype[Any]) -> float:
    """Operations a byte from which on the tensor engine, not HBM, is the limit: peak rate over HBM bandwidth.

    On trn1 with 16-bit tiles 2 x 128 x 128 x 2.8 GHz = 91.75 TFLOPS over 410 GB/s are 223.8. The paper's 222 is 91
    TFLOPS over the same bandwidth. Products of float32 tiles take four times as long.
    """
    passes = device.float32_passes if dtype.itemsize == 4 else 1
    return device.peak_flops / passes / device.hbm_bytes_per_second


def least_rows(work: Product, device: NeuronDevice) -> int | None:
    """The least B_M with which eq. 10 reaches the device's balance; None where no B_M does.

    Eq. 10 with M / B_M strips, solved for B_M: I = f / (s (a + b / B_M)) with f operations a token, s a bytes of x and
    the result a token, b elements of factors.
    """
    f = work.flops / work.m
    a = sum(k + n for k, n, _ in work.kernels)
    b = sum(pairs * work.r * (k + n) for k, n, pairs in work.kernels)
    room = f / (balance(device, work.dtype) * work.dtype.itemsize) - a
    return None if room <= 0 else ceil(b / room)


def propose(work: Product, device: NeuronDevice) -> list[Proposal]:
    """Blocks of whole tiles that fit into SBUF by eq. 11, in the order in which they deserve a run.

    B_M takes all sizes of ROWS that reach the balance, or all there are if none does. For each B_M the others are
    ordered: first those that leave room for double buffers, then by how little passes through SBUF between blocks (sums
    over K and r are cut by B_k and B_r), then full moving tiles, then by bytes. First comes the best for each B_M,
    largest intensity first, then the second best of each, and so on. UsageError where nothing fits.
    """
    fit = [proposal for proposal in _proposals(work) if proposal.sbuf_bytes <= device.sbuf_bytes]
    if not fit:
        raise UsageError(
            f"no blocks of whole tiles fit into the {device.sbuf_bytes} bytes of SBUF of {device.name}, which have to "
            f"hold a strip of {min(P, work.m)} x {work.r}: lower --r"
        )
    least = least_rows(work, device)
    strong = [proposal for proposal in fit if least is not None and proposal.blocks.m >= min(least, work.m)] or fit
    ranked: list[tuple[int, float, Proposal]] = []
    for rows in sorted({proposal.blocks.m for proposal in strong}):
        same_rows = [proposal for proposal in strong if proposal.blocks.m == rows]
        same_rows.sort(key=lambda proposal: _drawbacks(work, proposal.blocks, device))
        ranked += [(rank, -proposal.intensity, proposal) for rank, proposal in enumerate(same_rows)]
    return [proposal for *_, proposal in sorted(ranked, key=lambda entry: entry[:2])]


def _proposals(work: Product) -> Iterator[Proposal]:
    """All blocks that propose chooses from."""
    longest = max(k for k, _, _ in work.kernels), work.r, max(n for _, n, _ in work.kernels)
    axes = [_cuts(size, SIDES) for size in longest]
    for m, k, r, n in product(_cuts(work.m, ROWS), *axes):
        blocks = BlockSizes(m, k, r, n)
        yield Proposal(blocks, intensity(work, m), peak_sbuf(work, blocks))


def _cuts(size: int, sizes: tuple[int, ...]) -> list[int]:
    """Those of the sizes that are shorter than a matrix, and all of it in whole tiles if it is not longer than they."""
    whole = P * ceil(size / P)
    return [*(side for side in sizes if side < size), *([whole] if whole <= sizes[-1] else [])]


def _drawbacks(work: Product, blocks: BlockSizes, device: NeuronDevice) -> tuple[bool, int, bool, int, tuple[int, ...]]:
    """What speaks against blocks with the same B_M, the worst first; the last entry makes the order unique."""
    crowded = max(_held(work, blocks, loaded=2)) > device.sbuf_bytes
    sums = sum(
        pairs * work.m * (work.r * ceil(k / blocks.k) + n * ceil(work.r / blocks.r)) for k, n, pairs in work.kernels
    )
    return crowded, sums, blocks.n < F, peak_sbuf(work, blocks), astuple(blocks)
