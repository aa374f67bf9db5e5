"""Table 5 of NeuronMM: how much faster four models are with a compressed MLP. Its perplexities and accuracies need the
models' weights and are not here.

The paper does not say for which prompts and how many new tokens: here those of section 5.4.4, 1024 and 1024.
"""

import json
from collections.abc import Mapping
from typing import Any

from meshrt.models.catalogue import find_model
from meshrt.models.compress.ranks import aligned_ranks
from meshrt.models.config import read_config
from meshrt.neuron.device import NeuronDevice
from meshrt.ranks.files import write_file
from meshrt.studies.files import check_folder
from meshrt.studies.neuronmm import published
from meshrt.studies.rows import Emulate, PaperRow
from meshrt.studies.sweep import Outcome, RunJob
from meshrt.studies.tune.answers import folder

PROMPT = NEW = published.TOKENS
REQUESTS: tuple[tuple[str, int, Mapping[str, Any]], ...] = (  # what a time is called in a result, how often it counts
    ("ttft_seconds", 1, {"prompt_tokens": PROMPT, "max_new_tokens": 1}),
    ("tpot_seconds", NEW - 1, {"context": PROMPT + NEW // 2 - 1, "max_new_tokens": 2}),
)
LIKE: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # models that are not packaged, by one that is
    "llama3.2-3b": ("llama3.2-1b", {
        "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "head_dim": 128,
    }),
}  # fmt: skip


def table5(device: NeuronDevice, emulate: Emulate) -> list[PaperRow]:
    """Time of a request without compression over that with it. Of one layer and of two: all others are alike."""
    rows = []
    for model, stated in published.TABLE5.items():
        seconds = {ratio: _request(device, emulate, model, ratio) for ratio in (0.0, *stated)}
        for ratio, speedup in stated.items():
            before, after = seconds[0.0], seconds[ratio]
            emulated = None if before is None or after is None else before / after
            rows.append(PaperRow("5", f"ratio {ratio:g}", model, "speed-up", "ratio", speedup, emulated))
    return rows


def _request(device: NeuronDevice, emulate: Emulate, model: str, ratio: float) -> float | None:
    """Seconds from end to end, a token halfway for all; None where the machine refused."""
    path, layers = _folder(model, ratio)
    total: float | None = 0.0
    for name, times, options in REQUESTS:
        single, double = (_seconds(emulate(_job(device, path, count, options)), name) for count in (1, 2))
        if total is None or single is None or double is None:
            total = None
        else:
            total += times * (single + (layers - 1) * (double - single))
    return total


def _seconds(outcome: Outcome, name: str) -> float | None:
    return None if outcome.report is None else float(outcome.report["result"][name])


def _job(device: NeuronDevice, path: str, layers: int, options: Mapping[str, Any]) -> RunJob:
    return RunJob("llama", (1, 1), device, {"model": path, "dtype": "bfloat16", "layers": layers, **options})


def _folder(model: str, ratio: float) -> tuple[str, int]:
    """(a model folder without weights whose MLP has the ranks of eq. 5, in the user's cache folder; its layers)."""
    source, changes = LIKE.get(model, (model, {}))
    original = {**json.loads((find_model(source) / "config.json").read_text()), **changes}
    path = folder().parent / "models" / f"{model}-ratio-{ratio:g}"
    check_folder("the cache folder", str(path))

    def write(config: Mapping[str, Any]) -> None:
        text = json.dumps(config, indent=1) + "\n"
        write_file("the cache folder", str(path / "config.json"), lambda stream: stream.write(text.encode()))

    write(original)
    if ratio:
        ranks = aligned_ranks(read_config(path), "mlp", ratio, published.TABLE6_BLOCK)
        write({**original, "low_rank": {"ranks": ranks}})
    return str(path), int(original["num_hidden_layers"])
