"""AWS's own latencies of whole models on the 32 NeuronCores of a trn1.32xlarge, beside emulated ones. Beyond the paper.

Published: P50 of batch 1 with Transformers NeuronX, Neuron 2.18 (AWS Neuron SDK, about-neuron/benchmarks/trn1). No
number of a device was found on any of them.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from meshrt.models.catalogue import find_model
from meshrt.neuron.device import NeuronDevice
from meshrt.ranks.files import write_file
from meshrt.studies.files import check_folder
from meshrt.studies.neuronmm.tables import times
from meshrt.studies.rows import Emulate, PaperRow
from meshrt.studies.sweep import Outcome, RunJob
from meshrt.studies.tune.answers import folder

CORES = 32


class Latency(NamedTuple):
    """A published row: prompt and new tokens, bits of a weight, milliseconds to the first token and for each after."""

    model: str
    prompt: int
    new: int
    bits: int
    ttft: float
    tpot: float


PUBLISHED = (
    Latency("llama3-8b", 128, 8064, 8, 17.09, 7.03),
    Latency("llama3-8b", 128, 3968, 8, 14.75, 5.86),
    Latency("llama3-70b", 2048, 2048, 16, 547.0, 26.2),
    Latency("llama3-70b", 128, 1024, 16, 53.2, 24.48),
    Latency("llama2-7b", 128, 8064, 16, 13.324, 6.700),
    Latency("llama2-70b", 128, 128, 16, 53.910, 25.181),
    Latency("llama2-70b", 256, 256, 16, 81.882, 25.267),
    Latency("llama2-70b", 128, 1024, 16, 57.752, 25.449),
    Latency("llama2-70b", 1024, 1024, 16, 232.480, 26.038),
    Latency("codellama-13b", 4096, 4096, 16, 868.635, 9.865),
)
LIKE: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # models that are not packaged, by one that is
    "llama2-7b": ("llama2-13b", {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32,
    }),
    "llama2-70b": ("llama3-70b", {"vocab_size": 32000, "rope_theta": 10000.0}),
    "codellama-13b": ("llama2-13b", {"vocab_size": 32016, "rope_theta": 1000000.0}),
}  # fmt: skip


def table(device: NeuronDevice, emulate: Emulate) -> list[PaperRow]:
    """Time to the first token, and for one halfway through the new ones, of one layer and of two: all others are alike.

    The first token is beside the comparison (derived): the published times have compiled graphs of their own for it.
    """
    rows = []
    for stated in PUBLISHED:
        for column, milliseconds in (("TPOT", stated.tpot), ("TTFT", stated.ttft)):
            seconds, note = latency(device, emulate, stated.model, stated.prompt, stated.new, stated.bits, column)
            rows.append(
                PaperRow(
                    "tp32", f"{stated.model}, {stated.prompt} + {stated.new}", f"{stated.bits} bits", column, "ms",
                    milliseconds, times(seconds, 1e3), derived=column == "TTFT", note=note,
                )
            )  # fmt: skip
    return rows


def latency(
    device: NeuronDevice, emulate: Emulate, model: str, prompt: int, new: int, bits: int, column: str
) -> tuple[float | None, str]:
    """Seconds of one model's TTFT or TPOT on the 32 cores; None where the machine refused a run, and why."""
    folder_of, layers = _folder(model, prompt + new)
    name, options = {
        "TPOT": ("tpot_seconds", {"context": prompt + new // 2, "max_new_tokens": 2}),
        "TTFT": ("ttft_seconds", {"prompt_tokens": prompt, "max_new_tokens": 1}),
    }[column]
    outcomes = [emulate(_job(device, folder_of, bits, count, options)) for count in (1, 2)]
    return _all_layers(outcomes, name, layers), next((run.refused for run in outcomes if run.refused), "")


def _all_layers(outcomes: list[Outcome], name: str, layers: int) -> float | None:
    """Of a model, from what one layer and two take."""
    single, double = (None if run.report is None else float(run.report["result"][name]) for run in outcomes)
    return None if single is None or double is None else single + (layers - 1) * (double - single)


def _job(device: NeuronDevice, model: str, bits: int, layers: int, options: Mapping[str, Any]) -> RunJob:
    # AWS's int8 is signed, and has a scale for a column or a matrix ("s8" of the Transformers NeuronX developer guide;
    # quantization types of the NxD Inference feature guide): no zeros, no groups.
    weights: dict[str, Any] = {"bits": bits, "group": "row", "symmetric": True} if bits < 16 else {}
    return RunJob(
        "llama", (CORES, 1), device, {"model": model, "dtype": "bfloat16", "layers": layers, **weights, **options}
    )


def _folder(model: str, tokens: int) -> tuple[str, int]:
    """(a model folder without weights with room for so many tokens, in the user's cache folder, its layers)."""
    source, changes = LIKE.get(model, (model, {}))
    original: Mapping[str, Any] = json.loads((find_model(source) / "config.json").read_text())
    room = max(original["max_position_embeddings"], tokens)
    config = {**original, **changes, "max_position_embeddings": room}
    path = folder().parent / "models" / f"{model}-{room}"
    check_folder("the cache folder", str(path))
    text = json.dumps(config, indent=1) + "\n"
    write_file("the cache folder", str(path / "config.json"), lambda stream: stream.write(text.encode()))
    return str(path), int(config["num_hidden_layers"])
