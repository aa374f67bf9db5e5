"""What a safetensors file has: the tensors of its header, checked against the file.

The format (https://github.com/huggingface/safetensors): 8 bytes of little-endian header length, a JSON header that
gives each tensor's dtype, shape and place, then the data. The header is not trusted.
"""

import math
import mmap
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from meshrt.models.errors import ModelError
from meshrt.models.folders.files import MAX_JSON_BYTES, parse_object
from meshrt.records import dataclass

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}
MAX_AXES = 8


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies: `nbytes` from `offset` on, counted from the start of the file.

    `turned`: its rows are columns of what lies there, [shape[1], so many columns], from the first of these numbers on.
    """

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    turned: tuple[int, int] | None = None

    def view(self) -> NDArray[Any]:
        """The numbers where they lie on the disk: what is looked at is read. Raises ModelError."""
        dtype, size = numpy_dtype(self.dtype), self.nbytes
        try:
            data = _mapped(self.file, self.offset, size) if size else np.empty(0, np.uint8)  # no map is empty
            numbers = data.view(dtype)
            if self.turned is None:
                return numbers.reshape(self.shape)
            low, columns = self.turned
            return numbers.reshape(self.shape[1], columns)[:, low : low + self.shape[0]].T
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.file}: tensor {self.name} cannot be read: {error}") from error


def _mapped(file: Path, offset: int, size: int) -> NDArray[np.uint8]:
    """Bytes of a file where they lie on the disk, in a quarter of np.memmap's time, which is a class of its own. Raises
    OSError, and ValueError where the file has no so many.
    """
    begin = offset - offset % mmap.ALLOCATIONGRANULARITY
    with open(file, "rb") as stream:
        pages = mmap.mmap(stream.fileno(), offset - begin + size, access=mmap.ACCESS_READ, offset=begin)
    return np.frombuffer(pages, np.uint8, size, offset - begin)


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Reads and checks the header of one safetensors file. After this, every tensor has bytes of the file to itself."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > size - 8:
                raise ModelError(f"{file}: truncated, or not a safetensors file: {size} bytes, header of {length}")
            if length > MAX_JSON_BYTES:
                raise ModelError(f"{file}: a header of {length} bytes; the limit is {MAX_JSON_BYTES}")
            header = parse_object(stream.read(length).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: no readable safetensors header: {error}") from error
    header.pop("__metadata__", None)
    start = 8 + length
    tensors = {name: _check_tensor(file, name, entry, start, size) for name, entry in header.items()}
    _check_apart(file, tensors.values())
    return tensors


def _check_apart(file: Path, tensors: Iterable[StoredTensor]) -> None:
    ordered = sorted((tensor for tensor in tensors if tensor.nbytes), key=lambda tensor: tensor.offset)
    for tensor, other in pairwise(ordered):
        if other.offset < tensor.offset + tensor.nbytes:
            raise ModelError(f"{file}: tensors {tensor.name} and {other.name} overlap: the header is damaged or forged")


def _check_tensor(file: Path, name: str, entry: object, start: int, size: int) -> StoredTensor:
    where = f"{file}: tensor {name}"
    if not isinstance(entry, dict):
        raise ModelError(f"{where}: its header entry is not an object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        raise ModelError(f"{where}: malformed header entry: dtype {dtype!r}, shape {shape!r}, data_offsets {offsets!r}")
    begin, end = offsets
    if not begin <= end <= size - start:
        raise ModelError(
            f"{where}: its data is at bytes {begin}..{end} of {size - start}: the file is truncated or damaged"
        )
    if len(shape) > MAX_AXES or max(shape, default=0) >= 1 << 63:
        raise ModelError(f"{where}: shape {shape}; the limits are {MAX_AXES} axes of less than 2^63")
    # Of a dtype that is not supported the size is not known; such a tensor is refused when it is asked for.
    if dtype in ITEM_BYTES and math.prod(shape) * ITEM_BYTES[dtype] != end - begin:
        raise ModelError(f"{where}: shape {shape} of {dtype} does not fill the {end - begin} bytes that it is given")
    return StoredTensor(file, name, dtype, tuple(shape), start + begin, end - begin)


def _sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "BF16":
        import ml_dtypes  # only bfloat16 needs it, and every rank pays for an import

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype({"F32": "<f4", "F16": "<f2", "U8": "u1"}[name])
