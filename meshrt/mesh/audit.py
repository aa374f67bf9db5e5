"""What a user's own program forgets: transfers that no core waits for, and core memory that is read before it is
written. It is kept while the program runs and looked at when `run` has returned (meshrt/ownprogram.py); a packaged
program keeps nothing.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from numbers import Integral
from typing import Any, Protocol

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.memory import CoreMemory
from meshrt.mesh.mesh import Mesh
from meshrt.options import in_short
from meshrt.records import dataclass

NO_NUMBERS = "OSUMm"  # kinds of NumPy's


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
        """UsageError for multiply-accumulates that are no whole numbers, or not for each core."""
        each = np.asarray(macs)
        numbers = each.dtype.kind in "iuf" and bool((np.isfinite(each) & (each == np.rint(each))).all())
        try:
            fits = numbers and np.broadcast_shapes(each.shape, shape) == shape
        except ValueError:
            fits = False
        if not fits:
            said = in_short(macs) if each.ndim == 0 or not numbers else f"an array of shape {list(each.shape)}"
            wanted = f"a number of multiply-accumulates, or one for each core, {list(shape)}"
            raise UsageError(f"work of {said}: give {wanted}")

    def counts(self, **numbers: Any) -> None:
        """UsageError for what is to be counted and is no whole number from 0 on: ranks would not add up the same."""
        for name, number in numbers.items():
            if not isinstance(number, Integral) or number < 0:
                raise UsageError(f"`{name}` is {in_short(number)}: what cores do is counted in whole numbers from 0 on")

    def marks(self, cores: Any, shape: tuple[int, int]) -> None:
        """UsageError for what chooses cores by other things than a bool for each of the block: NumPy might take it for
        rows.
        """
        if cores is not None and not (isinstance(cores, np.ndarray) and (cores.dtype, cores.shape) == (bool, shape)):
            said = f"{cores.dtype} {list(cores.shape)}" if isinstance(cores, np.ndarray) else in_short(cores)
            raise UsageError(
                f"`cores` is {said}: a bool for each core of the block is wanted, {list(shape)}, rows first"
            )

    def fits(self, tiles: np.ndarray, out: np.ndarray | None, combine: Any = None) -> None:
        """Of a transfer: UsageError for tiles of no numbers, a place that NumPy might stretch tiles to, and what does
        not combine.
        """
        if tiles.dtype.kind in NO_NUMBERS:
            raise UsageError(f"tiles of {tiles.dtype}: packets take numbers along, such as np.float32")
        if combine is not None and not callable(combine):
            raise UsageError(f"`combine` is {in_short(combine)}: it is a function of two tiles, such as np.add")
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
            if isinstance(array, np.ndarray) and array.dtype.kind in ("c", *NO_NUMBERS):
                raise UsageError(
                    f"`{name}` of a product is of {array.dtype}: a core multiplies real numbers, in float32; of complex"
                    " ones multiply .real and .imag"
                )

    def adds_up(self, a: np.ndarray, b: Any, over: int | None, total: np.ndarray) -> None:
        """UsageError where NumPy would stretch a product, or its sums `over` an axis, to the total."""
        try:
            shape = [*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]]
            shape = shape if over is None else shape[:over] + shape[over + 1 :]
            stretched = [*np.broadcast_shapes(shape, total.shape)] == [*total.shape] != shape
        except ValueError:  # sides that do not go together, which is told elsewhere
            return
        if stretched:
            raise UsageError(
                f"`total` of shape {list(total.shape)} for a product of shape {shape}: what is added to has a place for"
                " each of its numbers"
            )

    def places(self, name: str, part: Any, wanted: tuple[slice, slice], dtype: np.dtype[Any]) -> None:
        """UsageError for a part of a matrix of another size than was asked for, and for one that `dtype` has no place
        for.
        """
        sizes = [side.stop - side.start for side in wanted]
        if not isinstance(part, np.ndarray) or [*part.shape] != sizes:
            came = f"{list(part.shape)} numbers" if isinstance(part, np.ndarray) else in_short(part)
            rows, columns = (f"{side.start} to {side.stop}" for side in wanted)
            raise UsageError(f"{name}: of rows {rows} and columns {columns} came {came}; an array {sizes} is wanted")
        if part.dtype.kind == "c" != dtype.kind:
            raise UsageError(f"{name} is of {part.dtype} and its tiles of {dtype}: imaginary parts would be cut off")

    def gathers(self, lead: tuple[int, int], mesh: Mesh, tiles: np.ndarray, shape: Any) -> None:
        """Of a matrix [bh, bw, rows of tiles, columns of tiles, rows, columns]: UsageError for tiles that are none of
        one, and for more rows or columns than all cores have.
        """
        if tiles.ndim != 6 or tiles.shape[:2] != lead:
            raise UsageError(f"tiles of shape {list(tiles.shape)} are no matrix's: leave `shape` away to have them all")
        rows, columns = mesh.height * tiles.shape[2] * tiles.shape[4], mesh.width * tiles.shape[3] * tiles.shape[5]
        whole = isinstance(shape, Sequence) and all(isinstance(side, Integral) for side in shape)
        if not whole or len(shape) != 2 or not (0 <= shape[0] <= rows and 0 <= shape[1] <= columns):
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
                blank = np.frombuffer(np.full((), np.nan, numbers.dtype).tobytes(), np.uint8)
                each = numbers.view(np.uint8).reshape(*numbers.shape[:2], -1, len(blank))
                cores = (each == blank).all(axis=3).any(axis=2)
                if cores.any():
                    counts[name, line] = int(cores.sum())
        return counts

    def _line(self) -> int:
        """Of the program's file, that is being run."""
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return frame.f_lineno
