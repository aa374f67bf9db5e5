"""Quantized matrices to and from the tensors of a model folder (models/quantize/form.py has the format)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.models.matrix import Matrix
from meshrt.models.quantize.codes import Codes
from meshrt.models.quantize.compensator import Compensator, Factor
from meshrt.models.quantize.form import Quantized
from meshrt.models.quantize.packing import pack, unpack
from meshrt.records import dataclass

ENDS = (
    "weight",
    "zero",
    "offset",
    "u",
    "v",
    "u_codes",
    "v_codes",
)  # of tensors that some forms have and others have not


@dataclass(frozen=True)
class MatrixParts:
    """What a folder has of one matrix: W_dq and, unless its rank is 0, U V."""

    codes: Codes
    compensator: Compensator | None

    def dense(self) -> NDArray[np.float64]:
        """W_dq + U V."""
        whole = self.codes.dequantized()
        return whole if self.compensator is None else whole + self.compensator.product()


def tensors(name: str, parts: MatrixParts) -> dict[str, NDArray[Any]]:
    """What is written of the matrix of that name."""
    codes, compensator = parts.codes, parts.compensator
    arrays: dict[str, NDArray[Any]] = {"codes": _packed(codes).reshape(len(codes.codes), -1), "scale": codes.scale}
    if codes.zero is not None:
        arrays["zero"] = codes.zero
    if codes.offset is not None:
        arrays["offset"] = codes.offset
    for letter, factor in (("u", compensator.u), ("v", compensator.v)) if compensator else ():
        if isinstance(factor, Codes):
            arrays |= {letter + "_codes": _packed(factor)[0], letter + "_scale": factor.scale[0]}
        else:
            arrays[letter] = factor
    return {f"{name}.{end}": np.ascontiguousarray(array) for end, array in arrays.items()}


def check_tensors(checkpoint: Checkpoint, name: str, form: Quantized, rows: int, columns: int) -> None:
    """Raises ModelError naming the tensor of the matrix [rows, columns] that is not as config.json says.

    Codes need no check: all that fits into their bits is one.
    """
    specs = form.tensors(name, rows, columns)
    for full in (f"{name}.{end}" for end in ENDS):
        if full in checkpoint.tensors and full not in specs:
            raise ModelError(
                f"{checkpoint.folder}: the checkpoint has a tensor {full}, but not the form that config.json's"
                " 'quantized' gives the matrix; one of them is wrong"
            )
    for full, (dtype, shape) in specs.items():
        tensor = checkpoint.find(full)
        if (tensor.dtype, tensor.shape) != (dtype, shape):
            raise ModelError(
                f"{tensor.file}: tensor {full} is {tensor.dtype} {list(tensor.shape)}; config.json's 'quantized' asks"
                f" for {dtype} {list(shape)}"
            )


def read_parts(checkpoint: Checkpoint, name: str, form: Quantized, rows: int, columns: int) -> MatrixParts:
    """The matrix of that name [rows, columns] as it is stored. Raises ModelError naming the tensor that is wrong."""
    check_tensors(checkpoint, name, form, rows, columns)
    read = {}
    for full, (dtype, _) in form.tensors(name, rows, columns).items():
        part = checkpoint.read(full)
        if dtype == "F16" and not np.isfinite(part).all():
            raise ModelError(f"{checkpoint.find(full).file}: tensor {full} has values that are NaN or infinite")
        read[full.removeprefix(name + ".")] = part

    def factor(letter: str, size: int) -> Factor:
        if form.compensator_bits == 16:
            half: NDArray[np.float16] = read[letter]
            return half
        codes = unpack(read[letter + "_codes"], form.compensator_bits)
        return Codes(codes[None], read[letter + "_scale"][None], None, form.compensator_bits, size)

    codes = unpack(read["codes"], form.bits).reshape(rows, -1, form.group)
    whole = Codes(codes, read["scale"], read.get("zero"), form.bits, columns, read.get("offset"))
    if not form.rank:
        return MatrixParts(whole, None)
    return MatrixParts(whole, Compensator(factor("u", rows * form.rank), factor("v", form.rank * columns), form.rank))


def read_dense(checkpoint: Checkpoint, matrix: Matrix) -> NDArray[np.float64]:
    """A quantized matrix as numbers, as a folder would have them: [columns, rows]. Raises ModelError."""
    assert isinstance(matrix.form, Quantized)
    return read_parts(checkpoint, matrix.name, matrix.form, matrix.columns, matrix.rows).dense()


def _packed(codes: Codes) -> NDArray[np.uint8]:
    """[rows, groups, bytes of a group]."""
    return pack(codes.codes, codes.bits)
