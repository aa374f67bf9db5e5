"""What a host script asks of a program: copies, launches, streams. The stand-ins (standin.py) call this."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshrt.csl.errors import CslError, Deadlock, MemoryLimit
from meshrt.csl.language.program import CslProgram, build
from meshrt.csl.language.types import CslArray, Pointer, dtype, nbytes
from meshrt.csl.language.values import MemoryAddress
from meshrt.csl.machine.core import WaferCore
from meshrt.csl.machine.stuck import why
from meshrt.csl.machine.trains import Train
from meshrt.csl.machine.wafer import Wafer


@dataclass(frozen=True)
class Stream:
    """A read of a stream that is not yet complete."""

    target: Any
    color: int
    cells: tuple[tuple[int, int], ...]
    each: int
    order: str
    shape: tuple[int, int]


class Host:
    """A program with its wafer.

    What is copied and streamed: `each` numbers of 16 or 32 `bits` for every core of a `box` (x, y, width, height); in
    `order` ROW_MAJOR core by core, row by row, or COL_MAJOR, [each, width, height]. CslError for a core without code, a
    name that is not exported, or another count of numbers.
    """

    def __init__(self, program: CslProgram, seed: int | None = None):
        self.program = program
        self.wafer = Wafer(program, seed)
        self.names: dict[str, int] = {}
        self.waiting: list[Stream] = []

    @classmethod
    def open(cls, folder: str, seed: int | None) -> Host:
        """What `cslc` has written. CslError."""
        path = Path(folder) / "out.json"
        try:
            written = json.loads(path.read_text())["meshrt"]
        except (OSError, ValueError, KeyError) as error:
            raise CslError(f"{folder} holds nothing that cslc of meshrt has built: {error}") from error
        parameters = {name: int(value) for name, value in written["parameters"].items()}
        return cls(build(Path(written["path"]), parameters, written["arch"]), seed)

    def symbol(self, name: str) -> int:
        """A number that stands for an exported name. CslError."""
        if not any(name in core.image.exports for core in self.wafer.cores.values()):
            names = sorted({name for core in self.wafer.cores.values() for name in core.image.exports})
            raise CslError(f"no tile exports {name!r}: there are {', '.join(names) or 'none'}")
        return self.names.setdefault(name, 1000 + len(self.names))

    def read(self, x: int, y: int, name: str, as_type: Any) -> Any:
        """A variable that a core exports, whole. CslError."""
        core = self.wafer.cores.get((x, y))
        exported = None if core is None else core.image.exports.get(name)
        if core is None or exported is None or not isinstance(exported.spot, MemoryAddress):
            raise CslError(f"core ({x}, {y}) exports no variable {name!r}")
        at = int(exported.spot.address)
        raw = core.memory[at : at + nbytes(exported.type)]
        of = exported.type.element if isinstance(exported.type, CslArray) else exported.type
        return raw.view(dtype(of) if as_type is None else np.dtype(as_type)).copy()

    def _cells(self, x: int, y: int, width: int, height: int) -> list[WaferCore]:
        cells = []
        for row in range(y, y + height):
            for column in range(x, x + width):
                core = self.wafer.cores.get((column, row))
                if core is None:
                    raise CslError(f"the host copies to or from core ({column}, {row}), which has no code")
                cells.append(core)
        return cells

    def _words(self, core: WaferCore, name: str, count: int, bits: int) -> Any:
        """A variable in a core's memory: a view of `count` words of so many bits. CslError, MemoryLimit."""
        size = bits // 8
        begin = self._address(core, name, count, size) // size
        return core.views["uint32" if size == 4 else "uint16"][begin : begin + count]

    def _address(self, core: WaferCore, name: str, count: int, size: int) -> int:
        """In bytes; of an exported pointer where it points to."""
        exported = core.image.exports.get(name)
        if exported is None:
            raise CslError(f"core ({core.x}, {core.y}) exports no {name!r}, which the host copies")
        if isinstance(exported.type, Pointer):
            at = int(core.m_uint16[exported.spot.address // 2]) if exported.spot is not None else int(exported.value)
        else:
            at = int(exported.spot.address)
        if at + count * size > core.nbytes:
            raise MemoryLimit(f"{count} elements of {name!r} from address {at} lead out of core ({core.x}, {core.y})")
        return at

    def _element(self, name: str) -> int:
        for core in self.wafer.cores.values():
            exported = core.image.exports.get(name)
            if exported is not None:
                kind = exported.type.to if isinstance(exported.type, Pointer) else exported.type
                return nbytes(kind.element if isinstance(kind, CslArray) else kind)
        raise CslError(f"no tile exports {name!r}")

    def copy_in(self, number: int, data: Any, box: tuple[int, int, int, int], each: int, bits: int, order: str) -> None:
        """To a variable, by what `symbol` gave for its name, once nothing moves any more."""
        self.wafer.idle()
        name = self._name(number)
        grid = _grid(data, box, each, order, bits)
        for core, values in zip(self._cells(*box), grid, strict=True):
            self._words(core, name, each, bits)[:] = values

    def copy_out(
        self, number: int, target: Any, box: tuple[int, int, int, int], each: int, bits: int, order: str
    ) -> None:
        """From a variable to the host's array."""
        self.wafer.idle()
        name = self._name(number)
        cells = self._cells(*box)
        grid = np.zeros((len(cells), each), np.uint32)
        for at, core in enumerate(cells):
            grid[at] = self._words(core, name, each, bits)
        _fill(target, grid, box, each, order)

    def stream_in(
        self, color: int, data: Any, box: tuple[int, int, int, int], each: int, bits: int, order: str
    ) -> None:
        """By a colour, as wavelets, one a cycle at every core."""
        grid = _grid(data, box, each, order, bits)
        cells = self._cells(*box)
        for core, values in zip(cells, grid, strict=True):
            if color not in core.image.from_host:
                raise CslError(
                    f"the host streams to colour {color} of core ({core.x}, {core.y}), which takes no stream of it"
                )
            core.deliver(color, Train(max(core.t, self.wafer.now), 1.0, np.array(values, np.uint32), False))
        self.wafer.settle()
        self._collect()

    def stream_out(
        self, color: int, target: Any, box: tuple[int, int, int, int], each: int, order: str, later: bool
    ) -> None:
        """What cores send to the host by a colour. `later`: the host does not wait for it (Deadlock, if it does)."""
        cells = tuple((core.x, core.y) for core in self._cells(*box))
        self.waiting.append(Stream(target, color, cells, each, order, box[2:]))
        self.wafer.settle()
        self._collect()
        if self.waiting and not later:
            self.complete()

    def _collect(self) -> None:
        """Complete the reads of streams that can be."""
        while self.waiting:
            stream = self.waiting[0]
            rows = []
            for x, y in stream.cells:
                parts = [data for _, data in self.wafer.to_host.get((x, y, stream.color), [])]
                rows.append(np.concatenate(parts) if parts else np.zeros(0, np.uint32))
            if any(len(row) < stream.each for row in rows):
                return
            for (x, y), row in zip(stream.cells, rows, strict=True):
                self.wafer.to_host[x, y, stream.color] = [(0.0, row[stream.each :])]
            grid = np.array([row[: stream.each] for row in rows], np.uint32)
            _fill(stream.target, grid, (0, 0, *stream.shape), stream.each, stream.order)
            self.waiting.pop(0)

    def complete(self) -> None:
        """All that was asked for is there. Deadlock."""
        self.wafer.settle()
        self._collect()
        if self.waiting:
            stream = self.waiting[0]
            short = []
            for x, y in stream.cells:
                have = sum(len(data) for _, data in self.wafer.to_host.get((x, y, stream.color), []))
                if have < stream.each:
                    short.append(f"  core ({x}, {y}) has sent {have} of {stream.each}: {why(self.wafer.cores[x, y])}")
            raise Deadlock(f"the host waits for colour {stream.color}, and nothing moves\n" + "\n".join(short[:4]))

    def launch(self, name: str, arguments: tuple[Any, ...], later: bool) -> None:
        """Call a function on all cores, and let the wafer go on as far as it does."""
        self.wafer.launch(name, arguments)
        self.wafer.settle()

    def stop(self) -> None:
        """The host's end: its reads are complete, and nothing moves. Deadlock."""
        self.complete()
        self.wafer.idle()

    def _name(self, number: int) -> str:
        for name, symbol_id in self.names.items():
            if symbol_id == number:
                return name
        raise CslError(f"the host copies to or from {number}, which get_id did not give")


def _grid(data: Any, box: tuple[int, int, int, int], each: int, order: str, bits: int) -> Any:
    """[cores, each] as uint32 of what a host gives, for cores row by row."""
    _, _, width, height = box
    flat = np.ascontiguousarray(data).ravel()
    if flat.size != width * height * each:
        raise CslError(f"the host gives {flat.size} numbers for {width} x {height} cores of {each}")
    if flat.dtype.itemsize == 4:
        raw = flat.view(np.uint32)
    elif flat.dtype.itemsize == 2:
        raw = flat.view(np.uint16).astype(np.uint32)
    else:
        raise CslError(f"the host gives numbers of {8 * flat.dtype.itemsize} bits: there are 16 and 32")
    if order == "COL_MAJOR":
        return raw.reshape(each, width, height).transpose(2, 1, 0).reshape(width * height, each)
    return raw.reshape(width * height, each)


def _fill(target: Any, grid: Any, box: tuple[int, int, int, int], each: int, order: str) -> None:
    """[cores, each] as uint32, for cores row by row, to a host's array."""
    _, _, width, height = box
    if order == "COL_MAJOR":
        grid = grid.reshape(height, width, each).transpose(2, 1, 0)
    flat = np.ascontiguousarray(grid).ravel()
    if target.size != flat.size:
        raise CslError(f"the host has room for {target.size} numbers, {flat.size} come")
    out = target.reshape(-1)
    if not np.shares_memory(out, target):
        raise CslError("the host's array is not contiguous")
    if target.dtype.itemsize == 4:
        out.view(np.uint32)[:] = flat
    else:
        out.view(np.uint16)[:] = flat.astype(np.uint16)


__all__ = ["Host", "dtype"]
