"""Where the elements of a vector lie in a core's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl.errors import MemoryLimit
from meshrt.csl.machine.vectors import Mem, offsets
from meshrt.csl.origin import failed

# Bytes of what a core's memory is looked at as: NumPy's types, and the same by their short names.
NUMBERS = (np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32)
SIZES: dict[Any, int] = {name: np.dtype(kind).itemsize for kind in NUMBERS for name in (kind, np.dtype(kind).str[1:])}


def elements(core: Any, mem: Mem, dtype: Any, begin: int, count: int) -> Any:
    """Indices into the core's memory, as that type, of some elements of a vector. MemoryLimit."""
    size = SIZES[dtype]
    first, past = divmod(mem.base, size)
    if past:
        raise failed(
            core,
            f"a vector of {mem.extent} numbers of {size} bytes begins at address {mem.base}: these lie at multiples of"
            f" {size}",
        )
    step = mem.nbytes // size or 1
    if not mem.extents:  # one number, by a pointer
        return first + np.zeros(count, np.int64)
    if len(mem.strides) == 1:
        stride = mem.strides[0] * step
        low = first + begin * stride
        last = low + (count - 1) * stride
        if min(low, last) < 0 or max(low, last) >= core.nbytes // size:
            raise _out(core, mem, last * size)
        return slice(low, last + 1, stride) if stride > 0 else low + np.arange(count) * stride
    index = first + offsets(mem.extents, mem.strides)[begin : begin + count] * step
    if len(index) and (index.min() < 0 or index.max() >= core.nbytes // size):
        raise _out(core, mem, int(index.max()) * size)
    return index


def _out(core: Any, mem: Mem, address: int) -> Any:
    return failed(
        core,
        f"a vector of {mem.extent} elements from address {mem.base} leads to {address},"
        f" out of a core's {core.nbytes:,} bytes",
        MemoryLimit,
    )
