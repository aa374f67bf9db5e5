"""python -m meshrt.studies.validate.gpufit: finds constants of GPUs (presets.py, timing.py, eager.py) and prints them.

Rows for fitting alone are read (`fit_rows`). In turns: the kernels of a row a block and what every kernel takes, on
Vidur's rows of three GPUs together; then each GPU's own numbers, on its own rows; of an A6000, which has few, those of
its chip are an A40's. At last PyTorch's kernels, on LLMServingSim's rows of two GPUs. What is made small is the mean of
|ln(emulated / measured)|, no row more than 0.5; by steps at random from a fixed seed, of which those that gain are
kept. It begins with the constants that there are; run again, it moves them by a few per cent where rows hardly tell.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshrt.gpu.device import GpuDevice
from meshrt.gpu.presets import GPU_PRESETS
from meshrt.gpu.timing import ACTIVATE, NORM, ROTATE, RowKernel, plain_seconds, rows_seconds, ways
from meshrt.studies.validate.eager import EAGER, Eager
from meshrt.studies.validate.gpulayers import DEVICES, DTYPE, LAYERS, MODELS, seconds
from meshrt.studies.validate.kind import Sizes
from meshrt.studies.validate.rows import DATA, read_rows

Found = dict[str, Any]  # numbers by name
MOST = 0.5
SHARED = ("kernel_seconds", "start_seconds")
OWN = ("memory_share", "flops_share", "sm_l2_bytes_per_second", "product_seconds")
CHIP = ("sm_memory_bytes_per_second", "split_seconds", "sm_rate")  # of an A6000 they are an A40's
BESIDE = "a100"  # whose `sm_rate` is 1
SHARES = ("memory_share", "flops_share")
LARGEST_SHARE = 0.97


def fit_rows(source: str, gpu: str) -> list[tuple[Sizes, float]]:
    """Sizes and seconds, of rows for fitting and no others."""
    rows = [row for row in read_rows(DATA / LAYERS.file, [LAYERS]) if row.use == "fit"]
    return [
        (row.sizes, 1e-6 * row.measured) for row in rows if (row.sizes["source"], row.sizes["gpu"]) == (source, gpu)
    ]  # fmt: skip


@dataclass(frozen=True)
class GpuMeasurements:
    """Rows of one GPU: products [m, k, n, seconds], and operators of vLLM by name [rows, width, bytes, seconds]."""

    products: np.ndarray
    operators: Mapping[str, np.ndarray]


def measured(rows: Sequence[tuple[Sizes, float]]) -> GpuMeasurements:
    products, operators = [], dict[str, list[tuple[float, ...]]]()
    for row, time in rows:
        if row["k"] is not None:
            products.append((row["m"], row["k"], row["n"], time))
            continue
        model, tp = MODELS[row["model"]], row["tp"]
        heads = model.heads // tp + max(1, model.kv // tp)
        width, arrays = {
            "input_layernorm": (model.hidden, 2), "attn_rope": (heads * model.head, 2),
            "mlp_act": (model.inner // tp, 3), "add": (model.hidden, 3),
        }.get(row["op"], (0, 0))  # fmt: skip
        nbytes = DTYPE.itemsize * arrays * row["m"] * width
        operators.setdefault(row["op"], []).append((row["m"], width, nbytes, time))
    return GpuMeasurements(np.array(products), {op: np.array(own) for op, own in operators.items()})


def off(emulated: np.ndarray, measured: np.ndarray) -> np.ndarray:
    distance: np.ndarray = np.minimum(np.abs(np.log(emulated / measured)), MOST)
    return distance


def search(start: Found, loss: Callable[[Found], float], steps: int) -> Found:
    """The best of so many steps at random, which get smaller."""
    rng, best = np.random.default_rng(0), dict(start)
    least, names = loss(best), [*start]
    for step in range(steps):
        width = 0.2 * 0.05 ** (step / steps)
        moved = rng.random(len(names)) < max(0.3, 1.5 / len(names))
        factors = np.exp(width * moved * rng.standard_normal(len(names)))
        tried = {name: best[name] * float(factor) for name, factor in zip(names, factors, strict=True)}
        tried |= {name: min(tried[name], LARGEST_SHARE) for name in SHARES if name in tried}
        if (lost := loss(tried)) < least:
            best, least = tried, lost
    return best


def of_operators(device: GpuDevice, kernels: Mapping[str, RowKernel], rows: Mapping[str, np.ndarray]) -> np.ndarray:
    """How far operators are off, one after the other."""
    parts = []
    for op, own in rows.items():
        tokens, width, nbytes, time = own.T
        takes = plain_seconds(device, 0, nbytes) if op == "add" else rows_seconds(
            device, kernels[op], tokens, width, nbytes
        )  # fmt: skip
        parts.append(off(device.kernel_seconds + takes, time))
    return np.concatenate(parts)


def of_products(device: GpuDevice, rows: np.ndarray) -> np.ndarray:
    shapes, where = np.unique(rows[:, :3], axis=0, return_inverse=True)
    best = ways(device, shapes.T[:, :, None, None], DTYPE.itemsize).min(-1)
    times: np.ndarray = device.kernel_seconds + best[where.reshape(-1)]
    return off(times, rows[:, 3])


def row_kernels(constants: Found) -> dict[str, RowKernel]:
    block = constants["block"]
    return {
        "input_layernorm": RowKernel(constants["norm"], constants["norm alone"], block, constants["norm again"]),
        "attn_rope": RowKernel(constants["rotate"], constants["rotate alone"], block),
        "mlp_act": RowKernel(constants["activate"], constants["activate alone"], block),
    }


def fit_kernels(
    devices: Mapping[str, GpuDevice], rows: Mapping[str, GpuMeasurements], start: Found, steps: int
) -> Found:
    def loss(constants: Found) -> float:
        kernels, shared = row_kernels(constants), {name: constants[name] for name in SHARED}
        parts = [of_operators(replace(devices[gpu], **shared), kernels, own.operators) for gpu, own in rows.items()]
        return float(np.mean([part.mean() for part in parts]))

    return search(start, loss, steps)


def fit_device(device: GpuDevice, rows: GpuMeasurements, kernels: Mapping[str, RowKernel], steps: int) -> GpuDevice:
    names = [*OWN, *(CHIP if rows.operators else ())]
    if device.name == BESIDE:
        names.remove("sm_rate")

    def loss(constants: Found) -> float:
        fitted = replace(device, **constants)
        parts = [of_products(fitted, rows.products)]
        if rows.operators:
            parts.append(of_operators(fitted, kernels, rows.operators))
        return float(np.concatenate(parts).mean())

    return replace(device, **search({name: getattr(device, name) for name in names}, loss, steps))


def fit_eager(devices: Mapping[str, GpuDevice], steps: int) -> Eager:
    rows = [
        (devices[gpu], sizes, time)
        for gpu in ("A6000", "H100") for sizes, time in fit_rows("LLMServingSim", gpu) if sizes["k"] is None
    ]  # fmt: skip
    times = np.array([time for _, _, time in rows])

    def eager(constants: Found) -> Eager:
        block = constants["block"]
        return Eager(
            RowKernel(constants["strided"], constants["strided alone"], block),
            RowKernel(constants["gather"], constants["gather alone"], block), constants["summing"], constants["few"],
        )  # fmt: skip

    def loss(constants: Found) -> float:
        kernels = eager(constants)
        return float(off(np.array([seconds(device, sizes, kernels) for device, sizes, _ in rows]), times).mean())

    start = {
        "strided": EAGER.strided.cycles, "strided alone": EAGER.strided.alone, "block": EAGER.strided.block,
        "gather": EAGER.gather.cycles, "gather alone": EAGER.gather.alone, "summing": EAGER.summing, "few": EAGER.few,
    }  # fmt: skip
    return eager(search(start, loss, steps))


def main(turns: int = 4, steps: int = 1500) -> None:
    devices = {gpu: GPU_PRESETS[name] for gpu, name in DEVICES.items()}
    rows = {gpu: measured(fit_rows("LLMServingSim" if gpu == "A6000" else "vidur", gpu)) for gpu in devices}
    rows["A6000"] = GpuMeasurements(rows["A6000"].products, {})
    several = {gpu: own for gpu, own in rows.items() if own.operators}
    a100 = devices["A100"]
    constants = {
        **{name: getattr(a100, name) for name in SHARED}, "block": NORM.block, "norm": NORM.cycles,
        "norm alone": NORM.alone, "norm again": NORM.again, "rotate": ROTATE.cycles, "rotate alone": ROTATE.alone,
        "activate": ACTIVATE.cycles, "activate alone": ACTIVATE.alone,
    }  # fmt: skip
    for _ in range(turns):
        constants = fit_kernels(devices, several, constants, steps)
        shared = {name: constants[name] for name in SHARED}
        for gpu in ("A40", "A6000", "A100", "H100"):
            device = devices[gpu]
            if gpu == "A6000":
                device = replace(device, **{name: getattr(devices["A40"], name) for name in CHIP})
            devices[gpu] = fit_device(replace(device, **shared), rows[gpu], row_kernels(constants), steps // 3)
    for name, number in constants.items():
        print(f"{name:30} {number:.4g}")
    for gpu, device in devices.items():
        print(gpu, *(f"{name} {getattr(device, name):.4g}" for name in (*OWN, *CHIP)), sep="\n  ")
    print(fit_eager(devices, steps // 4))


if __name__ == "__main__":
    main()
