"""WaferLLM's published kernels, MeshGEMM and MeshGEMV, on a WSE-3: mean cycles of one product (data/README.md).

Rows of one number of cores run on one mesh, by shape: its routes are planned once. A row's cycles are of its clock.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from meshrt.errors import LimitError, UsageError
from meshrt.mesh.block import Block, make_block
from meshrt.mesh.collectives.allreduce import ktree
from meshrt.mesh.collectives.rings import interleaved_rings
from meshrt.mesh.device import Device
from meshrt.mesh.presets import WSE3
from meshrt.programs.mesh.published.kernels import published_meshgemm, published_meshgemv, steady
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.studies.validate.kind import BatchRows, Emulated, MeasurementKind, Sizes, whole

ALL_STEPS = 208  # cores a side up to which all steps are run; beyond, STEPS of either loop
STEPS = 8
COUNTED = f"on more than {ALL_STEPS} x {ALL_STEPS} cores {STEPS} steps of a loop are run, the last counted for the rest"
REPEATS = 1  # after one to begin with: all are alike

Once = Callable[[Block, Sizes], Callable[[], object]]  # a row's product, ready to be run once and again


def emulate_meshgemm(device: Device, sizes: Sequence[Sizes], all_steps: int = ALL_STEPS) -> list[Emulated]:
    """Rows of one P."""
    p = sizes[0]["p"]
    sample, note = (None, "") if p <= all_steps else (STEPS, COUNTED)

    def ready(block: Block, stack: ExitStack) -> Once:
        rings = stack.enter_context(interleaved_rings(block))

        def product(block: Block, row: Sizes) -> Callable[[], object]:
            a = block.tiles("A", (1, 1, row["mt"], row["kt"]), np.float16)
            b = block.tiles("B", (1, 1, row["kt"], row["nt"]), np.float16)
            return partial(published_meshgemm, block, rings, a, b, sample)

        return product

    return _emulate(device, sizes, ready, note)


def emulate_meshgemv(device: Device, sizes: Sequence[Sizes]) -> list[Emulated]:
    """Rows of one P and number of groups, of [1, N] = [1, M] x [M, N]: mt is what is added up over."""

    def ready(block: Block, stack: ExitStack) -> Once:
        tree = stack.enter_context(ktree(block, "y", 2, sizes[0]["groups"], stored=True))

        def product(block: Block, row: Sizes) -> Callable[[], object]:
            x = block.tiles("x", (row["mt"],), np.float16)
            b = block.tiles("B", (row["mt"], row["nt"]), np.float16)
            return partial(published_meshgemv, block, tree, x, b)

        return product

    return _emulate(device, sizes, ready, "")


def _emulate(
    device: Device, sizes: Sequence[Sizes], ready: Callable[[Block, ExitStack], Once], note: str
) -> list[Emulated]:
    """All rows on one mesh of P x P cores; those that the machine has no room for are refused."""
    p, done = sizes[0]["p"], list[Emulated]()
    try:
        block = make_block(Alone(), device, p, p, Board.alone(), payload=False)
    except UsageError as error:
        return [Emulated(None, str(error))] * len(sizes)
    with ExitStack() as stack:
        stack.callback(block.close)
        try:
            product = ready(block, stack)
        except (LimitError, UsageError) as error:
            return [Emulated(None, str(error))] * len(sizes)
        for row in sizes:
            try:
                done.append(Emulated(steady(block, product(block, row), REPEATS), note))
            except LimitError as error:
                done.append(Emulated(None, str(error)))
    return done


def _alike(columns: Sequence[str], power: int, sizes: Sequence[Sizes]) -> list[tuple[float, BatchRows]]:
    """Rows that are alike in these columns, of which P is the first, together. Time goes with a power of P."""
    batches: dict[tuple[int, ...], list[int]] = {}
    for at, row in enumerate(sizes):
        batches.setdefault(tuple(row[column] for column in columns), []).append(at)
    return [(float(key[0] ** power * len(batch)), tuple(batch)) for key, batch in batches.items()]


GEMM = MeasurementKind(
    name="gemm",
    file="wse3_gemm.csv",
    columns=dict.fromkeys(("p", "mt", "kt", "nt"), whole),
    measured="cycles_mean",
    unit="cycles",
    kernel=lambda row: "MeshGEMM",
    size=lambda row: f"P {row['p']}",
    batches=partial(_alike, ("p",), 2),
    emulate=partial(emulate_meshgemm, WSE3),
)

GEMV = MeasurementKind(
    name="gemv",
    file="wse3_gemv.csv",
    columns=dict.fromkeys(("p", "mt", "nt", "groups"), whole),
    measured="cycles_mean",
    unit="cycles",
    kernel=lambda row: "MeshGEMV",
    size=lambda row: f"P {row['p']}, G {row['groups']}",
    batches=partial(_alike, ("p", "groups"), 2),
    emulate=partial(emulate_meshgemv, WSE3),
)
