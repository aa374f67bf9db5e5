"""`nl`: allocate, load and store, and the operators of `ops`. Names and argument orders are neuronxcc.nki.language's.

Where NKI says `buffer=nl.sbuf`, say `buffer=core.sbuf`: a kernel's core is not a global here.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from meshrt.errors import MissingName, nearest
from meshrt.neuron import isa
from meshrt.neuron.allocate import TileGrid, check_buffer
from meshrt.neuron.allocate import load as load
from meshrt.neuron.allocate import load_transpose2d as load_transpose2d
from meshrt.neuron.allocate import ndarray as ndarray
from meshrt.neuron.allocate import par_dim as par_dim
from meshrt.neuron.allocate import store as store
from meshrt.neuron.dtypes import DTYPES as DTYPES
from meshrt.neuron.dtypes import bfloat16 as bfloat16
from meshrt.neuron.dtypes import float16 as float16
from meshrt.neuron.dtypes import float32 as float32
from meshrt.neuron.dtypes import int8 as int8
from meshrt.neuron.dtypes import uint8 as uint8
from meshrt.neuron.isa import shared_identity as shared_identity
from meshrt.neuron.operand import Operand
from meshrt.neuron.ops import *  # noqa: F403 - max, min and sum are NKI's from here on
from meshrt.neuron.store import Buffer
from meshrt.neuron.tile import as_tile

tile_size = SimpleNamespace(pmax=128, gemm_stationary_fmax=128, gemm_moving_fmax=512, psum_fmax=512)

arange = np.arange
# Engines overlap as far as tiles and memory allow, in any loop: these only say what the author knows of its iterations.
affine_range = sequential_range = static_range = range


def __getattr__(name: str) -> Any:
    if name in ("sbuf", "psum", "hbm", "shared_hbm", "private_hbm"):
        raise MissingName(f"nl.{name} is no global here: say core.{name.split('_')[-1]}, of the kernel's core")
    if name.startswith("_"):
        raise AttributeError(f"nl has no {name!r}")
    near = nearest(name, globals(), "")
    text = f"nl has no {name!r}: docs/neuron.md says what there is, and what to write instead"
    raise MissingName(f"{text}; {near}" if near else text)


class IndexPair(NamedTuple):
    """Index arrays of a partition axis and a free one."""

    p: np.ndarray
    x: np.ndarray


class _PairGrid:
    """`nl.mgrid[0:p, 0:f]`: index arrays .p and .x."""

    def __getitem__(self, key: tuple[slice, slice]) -> IndexPair:
        return IndexPair(*np.ogrid[key])


mgrid = _PairGrid()


def full(shape: tuple[int, ...], fill_value: float, dtype: Any, *, buffer: Buffer) -> Any:
    """The same, set to a value by the vector engine."""
    allocated = ndarray(shape, dtype, buffer=buffer)
    for tile in allocated if isinstance(allocated, TileGrid) else (allocated,):
        isa.memset(tile, fill_value)
    return allocated


def zeros(shape: tuple[int, ...], dtype: Any, *, buffer: Buffer) -> Any:
    """The same, set to zero. In PSUM that costs nothing: the first product of a sum overwrites what is there."""
    check_buffer(buffer)
    if buffer.name != "psum":
        return full(shape, 0.0, dtype, buffer=buffer)
    allocated = ndarray(shape, dtype, buffer=buffer)
    for tile in allocated if isinstance(allocated, TileGrid) else (allocated,):
        if buffer.payload:
            tile.data[...] = 0
        tile.note_written()
    return allocated


def zeros_like(x: Operand) -> Any:
    """Zeros in the same buffer, shape and dtype."""
    tile = as_tile(x)
    return zeros(tile.shape, tile.dtype, buffer=tile.store.buffer)
