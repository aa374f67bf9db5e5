"""A model's matrices in two factors each: NeuronMM's block-aligned SVD (section 4.1), plain SVD, or AFM.

Out comes an ordinary model folder whose config.json has one key more (models/matrix.py).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshrt.models.calibrate import layer_grams
from meshrt.models.compress.decompose import FactorPair, afm, damping, feature_error, svd, weight_error, whitened_svd
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import check_shapes, expected_shapes, open_checkpoint, read_finite
from meshrt.models.folders.files import read_object
from meshrt.models.folders.writing import check_new_folder, write_folder
from meshrt.models.matrix import LowRank, Matrix
from meshrt.models.reference import load_weights
from meshrt.records import dataclass

Method = Literal["svd", "plain-svd", "afm"]
Array = NDArray[Any]


@dataclass(frozen=True)
class Compressed:
    """One matrix [in, out] and what became of it. Errors are relative, of the factors as they are stored."""

    name: str
    shape: tuple[int, int]
    rank: int
    parameters: tuple[int, int]  # before, after
    bytes: tuple[int, int]
    weight_error: float  # ||W - UV|| / ||W||
    feature_error: float | None  # ||X (W - UV)|| / ||X W||, on the calibration; None where nothing of it came
    damping: float  # added to the diagonal of X^T X / tokens, 0 unless it was singular


def compress(
    folder: Path,
    out: str | Path,
    ranks: Mapping[str, int],
    method: Method,
    calibration: Sequence[Sequence[int]],
    recipe: Mapping[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> list[Compressed]:
    """Writes the model in `folder` with the matrices of `ranks` in two factors of these ranks as a new folder `out`.

    `calibration` has sequences of token ids, `recipe` what config.json's `low_rank` says beside the ranks. `svd` is
    whitened. Factors have the dtype of their matrix. Matrices that were factors already and are not named stay as they
    are. Raises ModelError.
    """
    check_new_folder(out)
    config = read_config(folder)
    checkpoint = open_checkpoint(folder, config)
    check_shapes(checkpoint, config)
    data = read_object(folder / "config.json")
    data["low_rank"] = {**recipe, "ranks": {**config.factored, **ranks}}
    Config.from_dict(data, source=str(folder / "config.json"))  # refuses ranks that the matrices do not have
    tensors = read_finite(checkpoint, config)
    compressed = []
    weights, matrices = load_weights(checkpoint, np.float32, config), config.matrices()
    for number, grams in enumerate(layer_grams(config, weights, calibration)):
        for name in grams:
            if name in ranks:
                compressed.append(_replace(tensors, matrices[name], ranks[name], method, grams[name]))
        if progress:
            progress(number + 1, config.layers)
    write_folder(out, folder, data, tensors)
    return compressed


def _replace(tensors: dict[str, Array], matrix: Matrix, rank: int, method: Method, gram: Array) -> Compressed:
    """Puts the two factors of a matrix into `tensors`, in its place."""
    before = [tensors.pop(factor.name + ".weight") for factor in matrix.factors()]
    name, dtype, w = matrix.name, before[0].dtype, before[0].astype(np.float64).T
    for factor in before[1:]:
        w = w @ factor.astype(np.float64).T
    names = [factor.name + ".weight" for factor in replace(matrix, form=LowRank(rank)).factors()]
    with np.errstate(over="ignore"):
        u, v = (np.ascontiguousarray(factor.T.astype(dtype)) for factor in decompose(w, gram, rank, method))
    if not (np.all(np.isfinite(u)) and np.all(np.isfinite(v))):
        raise ModelError(f"{name}: its factors of rank {rank} are not finite in {dtype}; leave it out, or --no-whiten")
    tensors.update(zip(names, (u, v), strict=True))
    approximation = u.astype(np.float64).T @ v.astype(np.float64).T
    return Compressed(
        name=name,
        shape=(w.shape[0], w.shape[1]),
        rank=rank,
        parameters=(sum(factor.size for factor in before), u.size + v.size),
        bytes=(sum(factor.nbytes for factor in before), u.nbytes + v.nbytes),
        weight_error=weight_error(w, approximation),
        feature_error=feature_error(w, approximation, gram) if gram.any() else None,
        damping=damping(gram) if method == "svd" and gram.any() else 0.0,
    )


def decompose(w: Array, gram: Array, rank: int, method: Method) -> FactorPair:
    """W [in, out] ~ U V by this method. Where no input is known, as of an expert without a token, W alone counts."""
    if method == "plain-svd" or not gram.any():
        return svd(w, rank)
    return (afm if method == "afm" else whitened_svd)(w, gram, rank)


def summary(folder: Path, out: str | Path, matrices: Sequence[Compressed]) -> dict[str, Any]:
    """What `compress` did: each matrix, sizes of both folders, achieved ratios (NeuronMM, equation 4)."""
    before, after = (sum(matrix.parameters[at] for matrix in matrices) for at in (0, 1))
    was, now = sizes(folder), sizes(Path(out))
    return {
        "matrices": [asdict(matrix) for matrix in matrices],
        "parameters": {"before": was[0], "after": now[0]},
        "bytes": {"before": was[1], "after": now[1]},
        "ratio": {"matrices": 1 - after / before, "model": 1 - now[0] / was[0]},
    }


def sizes(folder: Path) -> tuple[int, int]:
    """Parameters of a model folder, and their bytes."""
    config = read_config(folder)
    checkpoint = open_checkpoint(folder, config)
    tensors = [(math.prod(checkpoint.shape(n)), checkpoint.dtype(n)) for n in expected_shapes(config)]
    return sum(size for size, _ in tensors), sum(size * dtype.itemsize for size, dtype in tensors)
