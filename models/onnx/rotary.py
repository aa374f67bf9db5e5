"""Which rotary embedding a graph's tables of cosines and sines are, by running them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.onnx.causal import feeds, open_sizes
from meshrt.models.onnx.probe import evaluate
from meshrt.models.rope import cos_sin

Array = NDArray[Any]
TOKENS, PAST = 24, 1
LLAMA3 = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
NEAR = 2e-4  # of a cosine, within the positions that are run
SLOW = 0.1  # of a turn that is so small there, the sine tells how fast it is; far away it is as large as any
ALIKE = 1e-3  # of such a sine, of itself


def read_rope(graph: ir.Graph, attention: ir.Node, ids: ir.Value | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """rope_theta, and rope_scaling if there is one. ModelError where the tables are none that is known."""
    tokens, past = open_sizes(graph, ids, TOKENS, PAST)
    cos, sin = attention.inputs[3:5]
    name = f"node {attention.name or attention.outputs[0].name} (Attention)"
    if cos is None or sin is None:
        raise ModelError(f"{name} has no rotary tables")
    size = int(config["head_dim"])
    run = [_run(value, graph, feeds(graph, ids, tokens, past), tokens, size) for value in (cos, sin)]
    if run[0] is None or run[1] is None:
        raise ModelError(f"{name} has rotary tables that cannot be computed of ids and positions")
    tables = run[0], run[1]
    positions = np.arange(past, past + tokens)
    rope = known(tables, positions, config)
    if rope is None:
        raise ModelError(f"{name} has rotary tables of none of the known embeddings: default, linear, LLaMA 3.1")
    return rope


def known(tables: tuple[Array, Array], positions: Array, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """rope_theta, and rope_scaling if there is one, of cosines and sines [positions, head_dim / 2] that are known."""
    for rope in candidates(tables, positions, int(config["head_dim"])):
        try:
            own = Config.from_dict({**config, **rope, "max_position_embeddings": 1 << 20})
        except ModelError:
            continue
        if _alike(tables, cos_sin(own, positions)):
            return rope
    return None


def _alike(tables: tuple[Array, Array], want: tuple[Array, Array]) -> bool:
    """Are they the same, and as fast where they turn slowly?"""
    slow = (want[1] > 0) & (want[1] < SLOW) & (want[0] > 0.9)
    off = [np.abs(a - b) for a, b in zip(tables, want, strict=True)]
    return all(difference.max() < NEAR for difference in off) and bool((off[1] <= ALIKE * want[1])[slow].all())


def _run(value: ir.Value, graph: ir.Graph, given: dict[ir.Value, Array], tokens: int, size: int) -> Array | None:
    """[tokens, size / 2] of a table that has both halves, or one."""
    results = [value.const_value.numpy()] if value.const_value is not None else evaluate([value], given)
    if results is None or results[0].ndim < 2:
        return None
    with np.errstate(over="ignore"):  # a table of float64 beyond float32 is like none that is known
        table = results[0].astype(np.float32).reshape(-1, results[0].shape[-1])
    half = size // 2
    if len(table) != tokens or table.shape[1] not in (half, size):
        return None
    if table.shape[1] == size and not np.array_equal(table[:, :half], table[:, half:]):
        return None
    return table[:, :half]


def candidates(tables: tuple[Array, Array], positions: Array, size: int) -> list[dict[str, Any]]:
    """Configurations whose frequencies are those at the first position that turns."""
    at = int(np.argmax(positions > 0))
    turned = np.arctan2(tables[1][at].astype(np.float64), tables[0][at].astype(np.float64)) / max(int(positions[at]), 1)
    half = size // 2
    if positions[at] != 1:
        last = half - 1  # a slow turn does not go round
        thetas = [float(turned[last] ** (-size / (2 * last)))] if last and turned[last] > 0 else [1e4]
    else:
        thetas = [] if half > 1 else [1e4]
        for low, high in ((0, half - 1), (0, 1)):
            if half > 1 and turned[high] > 0 and turned[low] > 0:
                thetas.append(float((turned[low] / turned[high]) ** (size / (2 * (high - low)))))
    out: list[dict[str, Any]] = []
    for theta in dict.fromkeys(nice for estimate in thetas if np.isfinite(estimate) for nice in _nice(estimate)):
        plain = {"rope_theta": theta}
        out.append(plain)
        if turned[0] > 0 and positions[at] == 1:
            out += [plain | {"rope_scaling": {"type": "linear", "factor": factor}} for factor in _nice(1 / turned[0])]
            frequency = inverse_frequencies_of(theta, size)
            if turned[-1] > 0:
                factors = _nice(float(frequency[-1] / turned[-1]))
                out += [plain | {"rope_scaling": LLAMA3 | {"factor": factor}} for factor in factors]
    return out


def inverse_frequencies_of(theta: float, size: int) -> Array:
    return theta ** -(np.arange(0, size, 2) / size)


def _nice(value: float) -> list[float]:
    """The numbers that may have been meant, shortest first."""
    return [*dict.fromkeys(float(f"{value:.{digits}g}") for digits in (1, 2, 3, 4, 6, 9))]
