"""The runs behind DeInfer's tables and figures, by shape: what to emulate, and what to read off the report."""

from collections.abc import Callable
from typing import Any

from meshrt.gpu.device import GpuDevice
from meshrt.gpu.presets import find_gpu
from meshrt.studies.bench.serve import WAYS, job
from meshrt.studies.deinfer.published import LOADS, RATIO
from meshrt.studies.rows import Emulate
from meshrt.studies.sweep import Outcome, RunJob

# As published: Base runs kernel by kernel; DeInfer replays graphs, with collectives beside kernels and fused ones.
WAY = {
    "Base": "base",
    "DeInfer": "overlapped",
    "DeInfer†": "overlapped, fused",
    "DeInfer† eager": "overlapped, fused, eager",
}
LAYERS_RUN = 2  # of layers that are alike: the second is counted for the others

ReadNumber = Callable[[dict[str, Any]], float]


def machine(name: str, link: str) -> GpuDevice:
    return find_gpu(name, framework="vllm", link=link)  # on which the paper's systems are built


def served(system: str, model: str, load: str, tp: int, device: GpuDevice, ratio: float = RATIO) -> RunJob:
    """A load of sections 5.2 and 5.3, all requests at once."""
    count, prompt, new = LOADS[load][model]
    return job(
        WAYS[WAY[system]], tp, device, False,
        {
            "model": model, "ratio": ratio, "requests": count, "prompt_tokens": str(prompt), "output_tokens": str(new),
            "max_batch": count, "max_prefill_tokens": 8192, "layers_run": LAYERS_RUN,
        },
    )  # fmt: skip


def one_batch(system: str, model: str, tokens: int, context: int, tp: int, device: GpuDevice) -> RunJob:
    """Decoding steps of a batch: some new tokens after a context, all together."""
    return job(
        WAYS[WAY[system]], tp, device, False,
        {
            "model": model, "ratio": RATIO, "requests": tokens, "prompt_tokens": str(context), "output_tokens": "5",
            "max_batch": tokens, "max_prefill_tokens": 8192, "layers_run": LAYERS_RUN,
        },
    )  # fmt: skip


def read(emulate: Emulate, run: RunJob, metric: ReadNumber) -> tuple[float | None, str]:
    """The figure, and a note where there is none."""
    outcome: Outcome = emulate(run)
    if outcome.report is None:
        return None, outcome.refused or ""
    return metric(outcome.report), ""


def ttft(report: dict[str, Any]) -> float:
    return float(report["result"]["ttft_ms"]["mean"])


def itl(report: dict[str, Any]) -> float:
    return float(report["result"]["itl_ms"]["mean"])


def throughput(report: dict[str, Any]) -> float:
    """New tokens a second."""
    return float(report["result"]["output_tokens_per_second"])


def decode_layer(report: dict[str, Any], metric: str, layers: int) -> float:
    """Milliseconds of a layer in one decoding step, the slowest GPU's."""
    (decode,) = (phase for phase in report["phases"] if phase["name"] == "decode")
    steps = int(report["arguments"]["output_tokens"]) - 1
    return 1e3 * float(decode[metric]) / steps / layers
