"""Where constants of `wse3` are from: least squares of emulated over measured cycles, over rows marked `fit` alone.

    python -m meshrt.studies.validate.fit

MeshGEMM's rows give the software of a product, of a step and of a loop; MeshGEMV's give hop, stage, die edge and the
software of an allreduce. The rest has sources of its own (`meshrt devices`). Each row is run with the constants of the
preset, and again with each constant a little larger. Cycles are straight in the constants as long as none of what
overlaps changes places, so that one step of Gauss and Newton's method finds them, from anywhere near. The preset has
them rounded to half a cycle. Takes about five minutes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from meshrt.mesh.device import Device
from meshrt.mesh.presets import WSE3
from meshrt.studies.validate.kind import BatchRows, Emulated, MeasurementKind, Sizes
from meshrt.studies.validate.meshproducts import GEMM, GEMV, emulate_meshgemm, emulate_meshgemv
from meshrt.studies.validate.rows import DATA, read_rows

CONSTANTS = {
    GEMM.name: ("product_cycles", "step_cycles", "loop_cycles"),
    GEMV.name: ("alpha", "beta", "die_cycles", "collective_cycles"),
}
SMALL = 1 / 8  # cycles

EmulateProducts = Callable[[Device, Sequence[Sizes]], list[Emulated]]


def fit(device: Device, wanted: Callable[[Sizes], bool] = lambda row: True) -> Device:
    """The device with those constants that make the sum of squares of emulated / measured - 1 least.

    `wanted` leaves out rows of other sizes.
    """
    kinds: tuple[tuple[MeasurementKind, EmulateProducts], ...] = ((GEMV, emulate_meshgemv), (GEMM, emulate_meshgemm))
    for kind, emulate in kinds:
        rows = [row for row in read_rows(DATA / kind.file, (kind,)) if row.use == "fit"]
        rows = [row for row in rows if wanted(row.sizes)]
        sizes, measured = [row.sizes for row in rows], np.array([row.measured for row in rows])
        ratios = partial(_ratios, emulate, sizes=sizes, measured=measured, batches=kind.batches(sizes))
        names, now, slopes = CONSTANTS[kind.name], ratios(device), []
        for name in names:
            slopes.append((ratios(replace(device, **{name: getattr(device, name) + SMALL})) - now) / SMALL)
        step = np.linalg.lstsq(np.stack(slopes, axis=1), 1 - now, rcond=None)[0]
        constants = {name: getattr(device, name) + float(by) for name, by in zip(names, step, strict=True)}
        print(f"{kind.kernel(sizes[0])}:", *(f"{name} {value:.2f}" for name, value in constants.items()))
        device = replace(device, **constants)
        off = np.abs(ratios(device) - 1)
        print(f"  {len(rows)} rows: median {np.median(off):.2%}, 95 % within {np.percentile(off, 95):.2%},", end=" ")
        print(f"worst {off.max():.2%}")
    return device


def _ratios(
    emulate: EmulateProducts,
    device: Device,
    sizes: Sequence[Sizes],
    measured: np.ndarray,
    batches: Sequence[tuple[float, BatchRows]],
) -> np.ndarray:
    """Emulated over measured, of each row."""
    cycles = np.full(len(sizes), np.nan)
    for _, batch in batches:
        cycles[list(batch)] = [outcome.value for outcome in emulate(device, [sizes[at] for at in batch])]
    ratios: np.ndarray = cycles / measured
    return ratios


if __name__ == "__main__":
    fit(WSE3)
