"""The container of GGUF (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), versions 2 and 3, little-endian.

    "GGUF", version u32, tensors u64, values u64; each value: name, type u32, itself; each tensor: name, axes u32,
    sizes u64 from the fastest axis on, type u32, offset u64; then, from the next multiple of the alignment on, the data

A text is its length, u64, and UTF-8. Nothing of it is trusted: all lengths are compared with the file's before anything
is made of that size.
"""

import struct
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshrt.models.errors import ModelError
from meshrt.models.keys import MAX_SIZE
from meshrt.records import dataclass

MAGIC, VERSIONS = b"GGUF", (2, 3)
MAX_HEADER = 128 << 20  # bytes: vocabularies and merges of 256,000 words take 15 MiB
MAX_COUNT = 1 << 16  # of values, and of tensors
MAX_AXES, MAX_ALIGNMENT = 4, 1 << 16
SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
TEXT, ARRAY = 8, 9
# The types of tensors whose sizes are known: name, numbers a block, bytes a block.
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
}  # fmt: skip


@dataclass(frozen=True)
class GgufTensor:
    """`nbytes` from `offset` on, counted from the start of the file. `shape` has the slowest axis first: [out, in]."""

    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Gguf:
    """What a file says, and where its tensors are."""

    path: Path
    values: Mapping[str, Any]  # texts, numbers, lists of texts, arrays of numbers
    tensors: Mapping[str, GgufTensor]

    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        """A tensor as rows of bytes [.., bytes of its last axis]."""
        tensor = self.tensors[name]
        try:
            data = np.fromfile(self.path, np.uint8, tensor.nbytes, offset=tensor.offset)
        except OSError as error:
            raise ModelError(f"{self.path}: tensor {name} cannot be read: {error}") from error
        if data.size != tensor.nbytes:
            raise ModelError(f"{self.path}: tensor {name}: the file is shorter than it was when it was opened")
        return data.reshape(*tensor.shape[:-1], -1)


def open_gguf(path: Path) -> Gguf:
    """Reads and checks all but the tensors' numbers. Raises ModelError."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            data = stream.read(MAX_HEADER)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        return _parse(path, _Cursor(data, truncated=len(data) < size), size)
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from None


@dataclass
class _Cursor:
    """Bytes that are read one after the other. ValueError at their end."""

    data: bytes
    truncated: bool
    at: int = 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            problem = f"its header has more than {MAX_HEADER} bytes, the limit" if self.truncated else "is truncated"
            raise ValueError(problem)
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        """A text, a number, a list of texts or an array of numbers."""
        if kind == TEXT:
            return self.text()
        if kind in SCALARS:
            return self.numbers(kind, 1)[0].item()
        if kind != ARRAY:
            raise ValueError(f"has a value of type {kind}, which GGUF does not have")
        inner, count = self.number("I"), self.number("Q")
        if inner == TEXT:
            if count > (len(self.data) - self.at) // 8:
                raise ValueError("is truncated: a list of texts goes beyond its end")
            return [self.text() for _ in range(count)]
        if inner not in SCALARS:
            raise ValueError(f"has a list of type {inner}; texts and numbers can be read")
        return self.numbers(inner, count)

    def numbers(self, kind: int, count: int) -> NDArray[Any]:
        dtype = np.dtype(SCALARS[kind])
        raw = np.frombuffer(self.take(count * dtype.itemsize), np.uint8 if kind == 7 else dtype)
        return raw != 0 if kind == 7 else raw


def _parse(path: Path, read: _Cursor, size: int) -> Gguf:
    if read.data[:4] != MAGIC:
        raise ValueError("is no GGUF file: it does not begin with these letters")
    read.take(4)
    version = read.number("I")
    if version not in VERSIONS:
        big = " (a big-endian file?)" if version & 0xFFFF == 0 else ""
        raise ValueError(f"is of GGUF version {version}{big}; 2 and 3, little-endian, can be read")
    counts = read.number("Q"), read.number("Q")
    if max(counts) > MAX_COUNT:
        raise ValueError(f"says to have {counts[0]} tensors and {counts[1]} values; {MAX_COUNT} are the most")
    values: dict[str, Any] = {}
    for _ in range(counts[1]):
        name, kind = read.text(), read.number("I")
        if name in values:
            raise ValueError(f"has {name!r} twice")
        values[name] = read.value(kind)
    alignment = values.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(f"general.alignment is {alignment!r}; a power of two up to {MAX_ALIGNMENT} can be")
    entries = [_tensor(read) for _ in range(counts[0])]
    start = -(-read.at // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, kind, shape, offset, nbytes in entries:
        if name in tensors:
            raise ValueError(f"has tensor {name} twice")
        if offset % alignment or offset + nbytes > size - start:
            raise ValueError(f"tensor {name}: its {nbytes} bytes from {offset} on are not in the file, or not aligned")
        tensors[name] = GgufTensor(kind, shape, start + offset, nbytes)
    ordered = sorted((tensor.offset, tensor.nbytes, name) for name, tensor in tensors.items() if tensor.nbytes)
    for (begin, nbytes, name), (other, _, beside) in pairwise(ordered):
        if other < begin + nbytes:
            raise ValueError(f"tensors {name} and {beside} overlap")
    return Gguf(path, values, tensors)


def _tensor(read: _Cursor) -> tuple[str, str, tuple[int, ...], int, int]:
    name, axes = read.text(), read.number("I")
    if not 1 <= axes <= MAX_AXES:
        raise ValueError(f"tensor {name} has {axes} axes; 1 to {MAX_AXES} can be")
    shape = tuple(read.number("Q") for _ in range(axes))[::-1]
    kind, offset = read.number("I"), read.number("Q")
    if not all(0 < size <= MAX_SIZE for size in shape):
        raise ValueError(f"tensor {name} has shape {list(shape)}; sizes from 1 to {MAX_SIZE} can be read")
    if kind not in TYPES:
        raise ValueError(
            f"tensor {name} is of type {kind}; {', '.join(word for word, *_ in TYPES.values())} can be read"
        )
    word, block, nbytes = TYPES[kind]
    if shape[-1] % block:
        raise ValueError(f"tensor {name}: rows of {shape[-1]} numbers are no whole blocks of {word}, {block} each")
    return name, word, shape, offset, prod(shape) // block * nbytes
