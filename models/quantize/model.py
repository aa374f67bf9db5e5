"""A whole model with its layers' matrices in a few bits, as a new folder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshrt.models.calibrate import expert_tokens, layer_grams
from meshrt.models.compress.decompose import feature_error, weight_error
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import Checkpoint, check_shapes, open_checkpoint, read_finite
from meshrt.models.folders.files import read_object
from meshrt.models.folders.writing import check_new_folder, write_folder
from meshrt.models.quantize.codes import Array, nearest, symmetric
from meshrt.models.quantize.folder import MatrixParts, tensors
from meshrt.models.quantize.form import HEAD_BITS
from meshrt.models.quantize.gptq import gptq
from meshrt.models.quantize.hqq import hqq
from meshrt.models.quantize.milo import Milo, milo
from meshrt.models.quantize.policies import Statistics
from meshrt.models.quantize.sizes import CodeScheme
from meshrt.models.quantize.statistics import kurtosis, residual_rank
from meshrt.models.quantize.w4a8 import w4a8
from meshrt.models.reference import load_weights
from meshrt.records import dataclass

METHODS = ("rtn", "hqq", "gptq", "milo", "w4a8")


@dataclass(frozen=True)
class QuantizedMatrix:
    """One matrix [out, in] and what became of it. Errors are relative, of what is stored, compensators included."""

    name: str
    shape: tuple[int, int]
    method: str  # hqq where gptq has no input of the matrix in the calibration
    rank: int
    bytes: tuple[int, int]  # before, after
    kurtosis: float
    residual_rank: tuple[int, int]  # of W - W_dq: singular values below half of the largest, and the others
    weight_error: float  # ||W - W'|| / ||W||
    feature_error: float | None  # ||X (W - W')|| / ||X W|| on the calibration, where it has tokens for it
    rounds: tuple[tuple[float, float], ...]  # milo: of each, the error with factors as numbers, and as stored
    kept: int | None  # which of the rounds, from 1 on
    stopped_by: str | None


def read_model(folder: Path) -> tuple[Config, Checkpoint]:
    """A model that can be quantized. Raises ModelError."""
    config = read_config(folder)
    checkpoint = open_checkpoint(folder, config)
    if config.factored:
        raise ModelError(
            f"{folder}: has matrices in two factors ('low_rank' in config.json); quantize the model that it was"
            " compressed from"
        )
    check_shapes(checkpoint, config)
    return config, checkpoint


def statistics(
    config: Config, checkpoint: Checkpoint, calibration: Sequence[Sequence[int]] | None = None
) -> Statistics:
    """What rank policies go by. How often experts are chosen is counted on these sequences of token ids."""
    tails = {name: kurtosis(checkpoint.read(name + ".weight")) for name in config.matrices()}
    if calibration is None:
        return Statistics(tails, {})
    return Statistics(tails, expert_tokens(config, load_weights(checkpoint, np.float32, config), calibration))


def quantize(
    folder: Path,
    out: str | Path,
    scheme: CodeScheme,
    ranks: Mapping[str, int],
    rounds: int,
    statistics: Statistics,
    calibration: Sequence[Sequence[int]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[QuantizedMatrix]:
    """Writes the model in `folder` with all matrices of its layers quantized as a new folder `out`.

    `ranks` are those of the compensators and `rounds` how often they are found anew, for milo; `calibration` has
    sequences of token ids, which gptq needs. Raises ModelError.
    """
    check_new_folder(out)
    config, checkpoint = read_model(folder)
    data = read_object(folder / "config.json")
    data["quantized"] = {
        "method": scheme.method, "bits": scheme.bits, "group": scheme.group, "symmetric": scheme.symmetric,
        "compensator_bits": scheme.compensator_bits, "ranks": dict(ranks),
    }  # fmt: skip
    if scheme.offset:
        data["quantized"]["offset"] = True
    if scheme.activations:
        data["quantized"]["activations"] = scheme.activations
    if scheme.head:
        data["quantized"]["head"] = HEAD_BITS
        data["tie_word_embeddings"] = False
    Config.from_dict(data, source=str(folder / "config.json"))  # refuses ranks that the matrices do not have
    written = read_finite(checkpoint, config)
    matrices = []
    for name, gram in _grams(config, checkpoint, calibration):
        w = written.pop(name + ".weight")
        try:
            figures, parts = _one(w.astype(np.float64), scheme, ranks.get(name, 0), rounds, gram)
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from error
        added = tensors(name, parts)
        written |= added
        size = w.nbytes, sum(array.nbytes for array in added.values())
        matrices.append(QuantizedMatrix(name=name, bytes=size, kurtosis=statistics.kurtosis[name], **figures))
        if progress:
            progress(len(matrices), len(config.matrices()))
    if scheme.head:
        matrices.append(_head(config, scheme, written))
    write_folder(out, folder, data, written)
    return matrices


def _head(config: Config, scheme: CodeScheme, written: dict[str, Array]) -> QuantizedMatrix:
    """The head in 8 bits; a tied one beside the embedding, which stays. ModelError."""
    name = config.head_matrix.name
    before = written.pop(f"{name}.weight", None)
    w = (written[f"{config.kind.names.embedding}.weight"] if before is None else before).astype(np.float64)
    try:
        codes = w4a8(w, scheme.group_of(config.hidden_size), scheme.symmetric, HEAD_BITS)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error
    added, approximation = tensors(name, MatrixParts(codes, None)), codes.dequantized()
    written |= added
    size = 0 if before is None else before.nbytes, sum(array.nbytes for array in added.values())
    return QuantizedMatrix(
        name, w.shape, "w8", 0, size, kurtosis(w), residual_rank(w - approximation), weight_error(w, approximation),
        None, (), None, None,
    )  # fmt: skip


def _grams(
    config: Config, checkpoint: Checkpoint, calibration: Sequence[Sequence[int]] | None
) -> Iterator[tuple[str, Array | None]]:
    """All matrices by name, with X^T X of their inputs on the calibration, if there is one."""
    if calibration is None:
        yield from ((name, None) for name in config.matrices())
        return
    for grams in layer_grams(config, load_weights(checkpoint, np.float32, config), calibration):
        yield from grams.items()


def _one(
    w: Array, scheme: CodeScheme, rank: int, rounds: int, gram: Array | None
) -> tuple[dict[str, Any], MatrixParts]:  # fmt: skip
    """A matrix [out, in] quantized, and what is told of it."""
    method, shape, loop = scheme.method, (scheme.bits, scheme.group_of(w.shape[1])), None
    if method == "gptq" and gram is not None and not gram.any():
        method = "hqq"
    if method == "milo":
        loop = milo(w, rank, *shape, scheme.compensator_bits, rounds)
        parts = MatrixParts(loop.codes, loop.compensator)
    elif method == "gptq" and gram is not None:
        parts = MatrixParts(gptq(w, gram, *shape), None)
    elif method == "hqq":
        parts = MatrixParts(hqq(w, *shape), None)
    elif method == "w4a8":
        parts = MatrixParts(w4a8(w, shape[1], scheme.symmetric, scheme.bits), None)
    else:
        parts = MatrixParts((symmetric if scheme.symmetric else nearest)(w, *shape), None)
    approximation = parts.dense()
    figures = {
        "shape": w.shape, "method": method, "rank": rank,
        "residual_rank": residual_rank(w - parts.codes.dequantized()), "weight_error": weight_error(w, approximation),
        "feature_error": None if gram is None or not gram.any() else feature_error(w.T, approximation.T, gram),
    }  # fmt: skip
    return figures | _rounds(loop), parts


def _rounds(loop: Milo | None) -> dict[str, Any]:
    if loop is None:
        return {"rounds": (), "kept": None, "stopped_by": None}
    curve = tuple((point.error, point.stored_error) for point in loop.curve)
    return {"rounds": curve, "kept": loop.kept, "stopped_by": loop.stopped_by}
