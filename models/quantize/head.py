"""A model's checkpoint for those who multiply numbers: what is kept in another form is rebuilt as it is read."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.family import family_of
from meshrt.models.folders.checkpoint import Checkpoint, Index, check_shapes, open_checkpoint
from meshrt.models.quantize.form import Quantized

ROWS = 1024  # that are rebuilt together: float64 of a vocabulary of 152,064 words would not fit everywhere


def checked_checkpoint(folder: str | Path, config: Config) -> Checkpoint:
    """The checkpoint of a model, its shapes checked, with norms by which numbers are multiplied. Raises ModelError."""
    checkpoint = open_checkpoint(folder, config)
    check_shapes(checkpoint, config)
    rebuilt = shifted_norms(checkpoint, config)
    if config.head is not None:
        from meshrt.models.quantize.folder import check_tensors  # most models need none of it, and start sooner without

        matrix, form = config.head_matrix, config.head
        check_tensors(checkpoint, matrix.name, form, matrix.columns, matrix.rows)

        def read(*index: Index) -> NDArray[np.float32]:
            return rows_of(checkpoint, matrix.name, form, matrix.rows, *index)

        rebuilt[f"{matrix.name}.weight"] = read
    return replace(checkpoint, rebuilt=rebuilt)


def shifted_norms(checkpoint: Checkpoint, config: Config) -> dict[str, Callable[..., NDArray[Any]]]:
    """How the weights of norms are read where something is to be added to them: in float32."""
    family = family_of(config)
    if not family.norm_shift:
        return {}
    shift = np.float32(family.norm_shift)

    def read(name: str, *index: Index) -> NDArray[np.float32]:
        return checkpoint.read(name, *index).astype(np.float32) + shift

    of_layers = ([*layer.norms, *(norm.name for norm in layer.head_norms)] for layer in family.layers)
    names = [family.norm, *(name for norms in of_layers for name in norms)]
    return {f"{name}.weight": partial(read, f"{name}.weight") for name in names}


def rows_of(
    checkpoint: Checkpoint, name: str, form: Quantized, columns: int, rows: Index, own: Index = slice(None)
) -> NDArray[np.float32]:
    """Some rows of the matrix of that name, with so many columns, and of these some columns. Raises ModelError."""
    from meshrt.models.quantize.codes import Codes
    from meshrt.models.quantize.packing import unpack

    tensors: dict[str, NDArray[Any]] = {}
    for end in ("codes", "scale", form.shift):
        if end is not None:
            tensors[end] = checkpoint.read(f"{name}.{end}", rows)
            if end != "codes" and not np.isfinite(tensors[end]).all():
                raise ModelError(f"{checkpoint.folder}: tensor {name}.{end} has values that are NaN or infinite")
    whole = []
    for low in range(0, len(tensors["codes"]), ROWS):
        part = {end: array[low : low + ROWS] for end, array in tensors.items()}
        codes = unpack(part["codes"], form.bits).reshape(len(part["codes"]), -1, form.group)
        numbers = Codes(codes, part["scale"], part.get("zero"), form.bits, columns, part.get("offset")).dequantized()
        whole.append(numbers[:, own].astype(np.float32))
    return np.concatenate(whole) if whole else np.zeros((0, len(np.arange(columns)[own])), np.float32)
