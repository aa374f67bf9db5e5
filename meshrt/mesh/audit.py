"""What a user's own program forgets: transfers that no core waits for, and core memory that is read before it is
written. It is kept while the program runs and looked at when `run` has returned (meshrt/ownprogram.py); a packaged
program keeps nothing.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.memory import CoreMemory
from meshrt.mesh.mesh import Mesh
from meshrt.options import in_short
from meshrt.records import dataclass


class Awaited(Protocol):
    """Of a transfer (replay.py)."""

    over: bool  # all cores have waited for it


@dataclass(eq=False)
class Audit:
    """Of this rank's cores. `path` is the program's name to its user, `file` that of its code."""

    path: str
    file: str
    sent: list[tuple[int, Sequence[Awaited]]] = field(default_factory=list)  # line of the file, what was to arrive
    kept: int = 1000  # transfers, before those that were received are dropped
    open_phase: str = ""  # that the cores are in
    fresh: dict[tuple[int, str], tuple[int, np.ndarray]] = field(default_factory=dict)  # line, numbers

    def works(self, macs: Any, shape: tuple[int, int]) -> None:
        """UsageError for multiply-accumulates that are no numbers, or not for each core."""
        each = np.asarray(macs)
        numbers = each.dtype.kind in "iuf" and bool(np.isfinite(each).all())
        try:
            fits = numbers and np.broadcast_shapes(each.shape, shape) == shape
        except ValueError:
            fits = False
        if not fits:
            said = in_short(macs) if each.ndim == 0 or not numbers else f"an array of shape {list(each.shape)}"
            wanted = f"a number of multiply-accumulates, or one for each core, {list(shape)}"
            raise UsageError(f"work of {said}: give {wanted}")

    def fits(self, tiles: np.ndarray, out: np.ndarray | None) -> None:
        """Of a transfer: UsageError for a place that NumPy might stretch tiles to."""
        if out is not None and out.shape != tiles.shape:
            raise UsageError(
                f"`out` of shape {list(out.shape)} for tiles of shape {list(tiles.shape)}: what arrives at a core is a"
                " tile as it was sent"
            )
        plain = out is not None and {out.dtype.kind, tiles.dtype.kind} <= set("biufc")  # others NumPy does not know
        if out is not None and plain and not np.can_cast(tiles.dtype, out.dtype, "same_kind"):
            raise UsageError(
                f"`out` of {out.dtype} for tiles of {tiles.dtype}: what arrives would be cut to numbers of another kind"
            )

    def multiplies(self, lead: tuple[int, int], operands: Mapping[str, Any]) -> None:
        """UsageError for what is no tiles of rows and columns at all cores, which NumPy might take for such."""
        for name, array in operands.items():
            if isinstance(array, np.ndarray) and (array.ndim < 4 or array.shape[:2] != lead):
                raise UsageError(
                    f"`{name}` of a product is of shape {list(array.shape)}: every core multiplies matrices,"
                    f" [bh, bw, rows, columns], of the cores of the block, {list(lead)} here (block.lead)"
                )

    def gathers(self, lead: tuple[int, int], mesh: Mesh, tiles: np.ndarray, shape: Any) -> None:
        """Of a matrix [bh, bw, rows of tiles, columns of tiles, rows, columns]: UsageError for tiles that are none of
        one, and for more rows or columns than all cores have.
        """
        if tiles.ndim != 6 or tiles.shape[:2] != lead:
            raise UsageError(f"tiles of shape {list(tiles.shape)} are no matrix's: leave `shape` away to have them all")
        rows, columns = mesh.height * tiles.shape[2] * tiles.shape[4], mesh.width * tiles.shape[3] * tiles.shape[5]
        if not isinstance(shape, Sequence) or len(shape) != 2 or shape[0] > rows or shape[1] > columns:
            raise UsageError(f"`shape` is {shape!r}: a matrix of these tiles has two sides, {rows} x {columns} at most")

    def takes(self, owners: Any, count: int) -> None:
        """UsageError for what is not the number of a core for each of them."""
        whole = isinstance(owners, np.ndarray) and owners.dtype.kind in "iu" and owners.shape == (count,)
        if not whole or owners.min() < 0 or owners.max() >= count:
            by_shape = isinstance(owners, np.ndarray) and not whole
            said = f"{owners.dtype} {list(owners.shape)}" if by_shape else in_short(owners)
            raise UsageError(
                f"`owners` is {said}: for each of the {count} cores, by number y * W + x, the number of the core whose"
                f" tile it gets is wanted, int [{count}] of 0 to {count - 1}"
            )

    def chooses(self, chosen: Mapping[str, tuple[np.ndarray | None, int]], needed: str = "") -> None:
        """UsageError for what chooses by other things than a bool for each position of a line, or each line; also where
        what is `needed` is None, which stands for all elsewhere.
        """
        for name, (marks, count) in chosen.items():
            fits = isinstance(marks, np.ndarray) and marks.dtype == bool and marks.shape == (count,)
            if not fits and (marks is not None or name == needed):
                said = f"{marks.dtype} {list(marks.shape)}" if isinstance(marks, np.ndarray) else repr(marks)
                raise UsageError(
                    f"`{name}` is {said}: an array of {count} bools over the whole mesh is wanted, such as"
                    f" np.arange({count}) == 0"
                )

    def sends(self, arrivals: Sequence[Awaited]) -> None:
        """A transfer has left."""
        self.sent.append((self._line(), arrivals))
        if len(self.sent) > self.kept:
            self.sent = self.open()
            self.kept = 1000 + 2 * len(self.sent)

    def open(self) -> list[tuple[int, Sequence[Awaited]]]:
        """Transfers that nobody has received, or not all of them."""
        return [(line, arrivals) for line, arrivals in self.sent if not all(arrival.over for arrival in arrivals)]

    def makes(self, memory: CoreMemory, name: str, numbers: np.ndarray) -> np.ndarray:
        """Fresh core memory under that name. Returns the same numbers as an array of its own, which may go as it would.

        It does not refer to `numbers` as a view does, so what a core is charged for goes when the program lets it go.
        """
        at, live = id(memory), {charge.name for charge in memory.arrays.values()}
        self.fresh = {key: entry for key, entry in self.fresh.items() if key[0] != at or key[1] in live}
        self.fresh[at, name] = self._line(), numbers
        return np.frombuffer(numbers.view(np.uint8).data, np.uint8).view(numbers.dtype).reshape(numbers.shape)

    def unwritten(self) -> dict[tuple[str, int], int]:
        """(name, line) of what still holds fresh memory's NaN, to the bit -> at how many cores."""
        counts = {}
        for (_, name), (line, numbers) in self.fresh.items():
            if numbers.dtype.kind not in "iub":
                bits = f"u{numbers.dtype.itemsize}"
                blank = np.full((), np.nan, numbers.dtype).view(bits)
                cores = (numbers.view(bits) == blank).reshape(*numbers.shape[:2], -1).any(axis=2)
                if cores.any():
                    counts[name, line] = int(cores.sum())
        return counts

    def _line(self) -> int:
        """Of the program's file, that is being run."""
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return frame.f_lineno
