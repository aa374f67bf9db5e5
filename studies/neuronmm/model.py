"""Tables 6 and 7 of NeuronMM: Llama-3.2-1B with its MLP compressed, by shape."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshrt.models.catalogue import find_model
from meshrt.models.compress.ranks import aligned_ranks, block_aligned_rank
from meshrt.models.config import Config, read_config
from meshrt.neuron.device import GIB, NeuronDevice
from meshrt.ranks.files import write_file
from meshrt.studies.files import check_folder
from meshrt.studies.neuronmm import published
from meshrt.studies.neuronmm.tables import times
from meshrt.studies.rows import Emulate, PaperRow
from meshrt.studies.sweep import Outcome, RunJob
from meshrt.studies.tune.answers import folder

MODEL, TOKENS = published.MODEL, published.TOKENS
CONTEXTS = (TOKENS, TOKENS + TOKENS // 2 - 1, 2 * TOKENS - 2)  # of the first, middle and last token that is decoded


def table6(device: NeuronDevice, emulate: Emulate) -> list[PaperRow]:
    """Sizes of matrices and of their factors at ratio 0.2: eq. 5, no run."""
    matrices = {matrix.name.rpartition(".")[2]: matrix for matrix in read_config(find_model(MODEL)).layer(0).matrices()}
    rows = []
    for name, (k, n, rank) in published.TABLE6.items():
        k_size, n_size = matrices[f"{name}_proj"].rows, matrices[f"{name}_proj"].columns
        emulated_rank = block_aligned_rank(k_size, n_size, published.TABLE6_RATIO, published.TABLE6_BLOCK)
        sizes = {
            f"{name}_proj": ((k, n), (k_size, n_size)),
            f"{name}_u_proj": ((k, rank), (k_size, emulated_rank)),
            f"{name}_v_proj": ((rank, n), (emulated_rank, n_size)),
        }
        for module, (stated, shape) in sizes.items():
            subject = f"{shape[0]} x {shape[1]}"
            rows.append(
                PaperRow("6", subject, module, "size", "elements", float(np.prod(stated)), float(np.prod(shape)))
            )
    return rows


def table7(device: NeuronDevice, emulate: Emulate) -> list[PaperRow]:
    """One request of 1024 tokens with 1024 new ones, end to end, by compression ratio (section 5.4.4).

    Twice: with the MLP's matrices as its kernels read them, and, beside the comparison (derived), as stored, [out, in]:
    the published program passes `weight.t()` to its kernels, and only a compiler could move that out of a pass.
    """
    config = read_config(find_model(MODEL))
    rows = []
    for ratio, stated in published.TABLE7.items():
        model = compressed_folder(config, ratio) if ratio else MODEL
        for options in ({}, {"stored": True}):
            prefill = emulate(_job(device, model, prompt_tokens=TOKENS, max_new_tokens=1, **options))
            tokens = [emulate(_job(device, model, context=at, max_new_tokens=2, **options)) for at in CONTEXTS]
            note = next((outcome.refused for outcome in (prefill, *tokens) if outcome.refused), "")
            rows += _rows(ratio, stated, _serving(prefill, tokens), note, bool(options))
            middle = tokens[1].report
            if middle is not None and not options:
                rows += _decode_rows(ratio, stated, middle)
    return rows


def _serving(prefill: Outcome, tokens: Sequence[Outcome]) -> published.Serving | None:
    """A row of the table from the runs of its prefill and of three tokens; None where the machine refused one.

    Between the first, middle and last token of decode, time is taken to grow linearly: attention does.
    """
    reports = [outcome.report for outcome in tokens if outcome.report is not None]
    if prefill.report is None or len(reports) < len(tokens):
        return None
    ttft = float(prefill.report["result"]["ttft_seconds"])
    steps = [report["result"]["tpot_seconds"] for report in reports]
    decode = float(np.interp(np.arange(CONTEXTS[0], CONTEXTS[-1] + 1), CONTEXTS, steps).sum())
    return published.Serving(ttft + decode, 2 * TOKENS / (ttft + decode), ttft, decode / (TOKENS - 1))


def _rows(
    ratio: float, stated: published.Serving, emulated: published.Serving | None, note: str, stored: bool
) -> list[PaperRow]:
    columns = {
        "latency": ("end to end", "s", 1.0),
        "throughput": ("throughput", "tokens/s", 1.0),
        "ttft": ("TTFT", "ms", 1e3),
        "tpot": ("TPOT", "ms", 1e3),
    }
    return [
        PaperRow(
            "7", _subject(ratio), MODEL + stored * ", weight.t()", column, unit, times(getattr(stated, name), scale),
            times(None if emulated is None else getattr(emulated, name), scale), note=note,
            derived=stored or name == "throughput",
        )
        for name, (column, unit, scale) in columns.items()
    ]  # fmt: skip


def _decode_rows(ratio: float, stated: published.Serving, middle: Mapping[str, Any]) -> list[PaperRow]:
    """What crosses between HBM and SBUF for a token, and at what rate: as many bytes in the published time, too."""
    (decode,) = (phase for phase in middle["phases"] if phase["name"] == "decode")
    traffic, seconds = decode["hbm_bytes"]["total"], decode["critical_path"]["seconds"]
    rate = None if stated.tpot is None else traffic / stated.tpot / 1e9
    subject = _subject(ratio)
    return [
        PaperRow("7", subject, MODEL, "traffic of a token", "GiB", None, traffic / GIB, derived=True),
        PaperRow("7", subject, MODEL, "HBM rate in decode", "GB/s", rate, traffic / seconds / 1e9, derived=True),
    ]


def _job(device: NeuronDevice, model: str, **options: Any) -> RunJob:
    return RunJob("llama", (1, 1), device, {"model": model, "dtype": "bfloat16", **options})


def _subject(ratio: float) -> str:
    return f"ratio {ratio:g}" + (f", rank {_rank(read_config(find_model(MODEL)), ratio)}" if ratio else "")


def _rank(config: Config, ratio: float) -> int:
    return block_aligned_rank(config.hidden_size, config.intermediate_size, ratio, published.TABLE6_BLOCK)


def compressed_folder(config: Config, ratio: float) -> str:
    """A model folder without weights whose MLP has the ranks of eq. 5, in the user's cache folder. UsageError.

    Its name says what is in it, so that runs of it are known again (--cache).
    """
    ranks = aligned_ranks(config, "mlp", ratio, published.TABLE6_BLOCK)
    path = folder().parent / "models" / f"{MODEL}-rank-{_rank(config, ratio)}"
    check_folder("the cache folder", str(path))
    original: Mapping[str, Any] = json.loads((find_model(MODEL) / "config.json").read_text())
    text = json.dumps({**original, "low_rank": {"ranks": ranks}}, indent=1) + "\n"
    write_file("the cache folder", str(path / "config.json"), lambda stream: stream.write(text.encode()))
    return str(path)
