"""Whole models on the 32 NeuronCores of a trn1.32xlarge, in milliseconds: the columns of AWS's own latencies.

A line has two measurements, the time to the first token and that of a token after it; each is a kind. They are run as
`meshrt reproduce neuronmm tp32` runs AWS's published rows (studies/neuronmm/manycores.py): one layer and two, by shape,
the others alike; a token halfway. They take minutes, so that no file of them is run unless it is named.
"""

from collections.abc import Sequence
from functools import partial

from meshrt.errors import LimitError, UsageError
from meshrt.neuron.device import TRN1
from meshrt.studies.neuronmm.manycores import latency
from meshrt.studies.sweep import run_alone
from meshrt.studies.validate.kind import BatchRows, Emulated, MeasurementKind, Sizes, whole, word

MODELS = {
    "Llama-2-7b": "llama2-7b",
    "Llama-2-13b": "llama2-13b",
    "Llama-2-70b": "llama2-70b",
    "Llama-3-8B": "llama3-8b",
    "Llama-3-70B": "llama3-70b",
    "Llama-3.1-8B": "llama3-8b",
    "Llama-3.1-70B": "llama3-70b",
    "CodeLlama-13b-hf": "codellama-13b",
    "CodeLlama-34b-hf": "codellama-34b",
    "Mistral-7B-Instruct-v0.2": "mistral-7b",
}
BITS = {"int8": 8, "bf16": 16, "fp16": 16}


def emulated(column: str, row: Sizes) -> Emulated:
    """TTFT or TPOT; none where the model is not known, or the machine has no room for it."""
    if row["model"] not in MODELS:
        return Emulated(None, f"the sizes of {row['model']} are not known; there are {', '.join(MODELS)}")
    sizes = row["input_tokens"], row["output_tokens"], BITS[row["weights"]]
    try:
        seconds, note = latency(TRN1, run_alone, MODELS[row["model"]], *sizes, column)
    except (UsageError, LimitError) as error:
        return Emulated(None, str(error))
    return Emulated(None if seconds is None else 1e3 * seconds, note)


def _weights(text: str) -> str:
    if text not in BITS:
        raise ValueError(f"{text!r} is not known; there are {', '.join(BITS)}")
    return text


def _alone(rows: Sequence[Sizes]) -> list[tuple[float, BatchRows]]:
    return [(1e7, (at,)) for at in range(len(rows))]


def _kind(column: str, measured: str, beside: str, time: str) -> MeasurementKind:
    return MeasurementKind(
        name=f"trn1 {time}",
        file="",
        columns={"model": word, "input_tokens": whole, "output_tokens": whole, "weights": _weights},
        measured=measured,
        unit="ms",
        kernel=lambda row: f"trn1 {time}",
        size=lambda row: f"{row['model']}, {row['weights']}",
        batches=_alone,
        emulate=lambda rows: [*map(partial(emulated, column), rows)],
        beside=(beside,),
    )


TOKEN = _kind("TPOT", "tpot_p50_ms", "ttft_p50_ms", "token")
FIRST_TOKEN = _kind("TTFT", "ttft_p50_ms", "tpot_p50_ms", "first token")
