"""What host scripts import: a runtime with the interface that they expect. Only a child of `meshrt csl run` sees it.

Names of an interface alone are repeated here, as public scripts use them.
"""

from __future__ import annotations

import enum
import json
import os
import sys
from typing import Any

import numpy as np

from meshrt.csl.errors import CslError
from meshrt.csl.host.orders import digests
from meshrt.csl.host.runtime import Host
from meshrt.csl.language.program import CslProgram

OPENED: dict[str, Host] = {}  # of this process, for debug_util


class MemcpyDataType(enum.Enum):
    MEMCPY_16BIT = 16
    MEMCPY_32BIT = 32


class MemcpyOrder(enum.Enum):
    ROW_MAJOR = "ROW_MAJOR"
    COL_MAJOR = "COL_MAJOR"


class SdkRuntime:
    """A program that cslc, or a layout of the script itself, has built, on the interpreter."""

    def __init__(self, bindir: Any, *platform: Any, **options: Any):
        given = os.environ.get("MESHRT_CSL_SEED")
        seed = None if given is None else int(given)
        self._host = Host(bindir, seed) if isinstance(bindir, CslProgram) else Host.open(str(bindir), seed)
        OPENED[str(bindir)] = self._host

    def __enter__(self) -> SdkRuntime:
        self.load()
        self.run()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self.stop()

    def load(self) -> None:
        """Here it is loaded as it is opened."""

    def run(self) -> None:
        self._host.wafer.settle()

    def stop(self) -> None:
        self._host.stop()
        report = os.environ.get("MESHRT_CSL_REPORT")
        if report:
            from meshrt.csl.report import report_of

            content = report_of(self._host.wafer)
            if os.environ.get("MESHRT_CSL_EXPORTED"):
                content["exported"] = digests(self._host.wafer)
            with open(report, "a") as out:
                out.write(json.dumps(content) + "\n")

    def read_symbol(self, x: int, y: int, name: str, dtype: Any = None) -> Any:
        return self._host.read(x, y, name, dtype)

    def get_id(self, name: str) -> int:
        return self._host.symbol(name)

    def memcpy_h2d(
        self, dest: int, src: Any, px: int, py: int, w: int, h: int, elem_per_pe: int, *, streaming: bool,
        data_type: MemcpyDataType, order: MemcpyOrder, nonblock: bool,
    ) -> int:  # fmt: skip
        copy = self._host.stream_in if streaming else self._host.copy_in
        copy(int(dest), src, (px, py, w, h), int(elem_per_pe), data_type.value, order.value)
        return 0

    def memcpy_h2d_colbcast(
        self, dest: int, src: Any, px: int, py: int, w: int, h: int, elem_per_pe: int, **how: Any
    ) -> int:
        """Each column's data to all of its cores."""
        all_rows = np.broadcast_to(_grid_of(src, w, elem_per_pe, how)[None], (h, w, int(elem_per_pe)))
        return self.memcpy_h2d(dest, all_rows, px, py, w, h, elem_per_pe, **_row_major(how))

    def memcpy_h2d_rowbcast(
        self, dest: int, src: Any, px: int, py: int, w: int, h: int, elem_per_pe: int, **how: Any
    ) -> int:
        """Each row's data to all of its cores."""
        all_columns = np.broadcast_to(_grid_of(src, h, elem_per_pe, how)[:, None], (h, w, int(elem_per_pe)))
        return self.memcpy_h2d(dest, all_columns, px, py, w, h, elem_per_pe, **_row_major(how))

    def memcpy_d2h(
        self, dest: Any, src: int, px: int, py: int, w: int, h: int, elem_per_pe: int, *, streaming: bool,
        data_type: MemcpyDataType, order: MemcpyOrder, nonblock: bool,
    ) -> int:  # fmt: skip
        box = (px, py, w, h)
        if streaming:
            self._host.stream_out(int(src), dest, box, int(elem_per_pe), order.value, nonblock)
        else:
            self._host.copy_out(int(src), dest, box, int(elem_per_pe), data_type.value, order.value)
        return 0

    def launch(self, name: str, *arguments: Any, nonblock: bool = True) -> int:
        if len(arguments) == 1 and isinstance(arguments[0], list | tuple):
            arguments = tuple(arguments[0])
        self._host.launch(name, arguments, nonblock)
        return 0

    def call(self, name: str, arguments: Any, nonblock: bool = True) -> int:
        return self.launch(name, *arguments, nonblock=nonblock)

    def is_task_done(self, task: int) -> bool:
        return True

    def task_wait(self, task: int) -> None:
        self._host.complete()


def _grid_of(src: Any, count: int, each: int, how: dict[str, Any]) -> Any:
    """[cores of a line, each]"""
    flat = np.ascontiguousarray(src).ravel()
    return flat.reshape(each, count).T if how["order"] is MemcpyOrder.COL_MAJOR else flat.reshape(count, each)


def _row_major(how: dict[str, Any]) -> dict[str, Any]:
    return how | {"order": MemcpyOrder.ROW_MAJOR}


def input_array_to_u32(np_arr: Any, sentinel: int | None, fast_dim_sz: int) -> Any:
    """16 bits a word; with a sentinel the upper 16 bits are the index modulo fast_dim_sz."""
    flat = np.ascontiguousarray(np_arr).ravel()
    if flat.dtype.itemsize == 4:
        return flat.view(np.uint32).copy()
    if flat.dtype.itemsize != 2:
        raise CslError(f"input_array_to_u32 of {flat.dtype}: there are numbers of 16 and 32 bits")
    low = flat.view(np.uint16).astype(np.uint32)
    if sentinel is not None:
        return low | (np.arange(flat.size, dtype=np.uint32) % np.uint32(fast_dim_sz)) << np.uint32(16)
    return low


def memcpy_view(arr: Any, datatype: Any) -> Any:
    """The low bits of an array of words, as another type; what is written to it is written there."""
    datatype = np.dtype(datatype)
    if datatype.itemsize == 4:
        return arr.view(datatype)
    view = arr.view(datatype)
    return view[..., ::2] if view.ndim else view


def calculate_cycles(array: Any) -> int:
    """Between two stamps, each three words of 16 bits, packed in three of 32."""
    words = np.ascontiguousarray(array).view(np.uint16)
    start, end = (int(words[at]) | int(words[at + 1]) << 16 | int(words[at + 2]) << 32 for at in (0, 3))
    return end - start


def warn_of_numpy() -> None:
    if int(np.__version__.split(".")[0]) >= 2:
        print(
            "meshrt csl: NumPy 2 shifts 16-bit numbers within 16 bits, so scripts that put stamps together with <<"
            " keep their low 16 bits only; the cycles of meshrt's own report are whole",
            file=sys.stderr,
        )
