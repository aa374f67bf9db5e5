"""What moves numbers, by instructions: neighbours that stay neighbours as registers, others one by one.

Where a number comes from is worked out by the operator itself, which is given 0, 1, 2 .. in their place; on a core that
is the work of addresses, which is not timed.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from meshrt.arm.cache import CachePieces, stretch
from meshrt.arm.core import Team
from meshrt.arm.isa import ld1, of, st1
from meshrt.arm.kernel import MicroKernel
from meshrt.models.graph import Node, compute
from meshrt.programs.arm.simd.vectors import sweep, units_of
from meshrt.records import dataclass

Array = np.ndarray
LINE = 64  # bytes that come from memory together
INSERT = {1: "ins_16b", 4: "ins_4s", 8: "ins_2d"}
WHOLE = MicroKernel("move", (), (ld1(("a",), "x"), st1(("a",), "y")), ())


@dataclass(frozen=True)
class LaneMoves:
    """Of a result in registers [.., lanes]: which number of the operands, one after the other, each of it is."""

    numbers: Array
    begins: tuple[int, ...]  # of each operand
    itemsize: int

    @property
    def together(self) -> Array:
        """Of which registers the numbers are neighbours where they come from."""
        neighbours: Array = (np.diff(self.numbers, axis=1) == 1).all(axis=1)
        return neighbours

    def read(self, units: Sequence[int], operand: int, buffer: int) -> CachePieces:
        """Of an operand, the lines of memory that these registers are in, by pieces."""
        numbers = self.numbers[units[0] : units[-1] + 1].reshape(-1)
        low, high = self.begins[operand : operand + 2]
        lines = np.unique((numbers[(numbers >= low) & (numbers < high)] - low) * self.itemsize // LINE)
        if not lines.size:
            return []
        runs = np.split(lines, np.flatnonzero(np.diff(lines) > 1) + 1)
        end = (high - low) * self.itemsize
        return [
            piece for run in runs for piece in stretch(buffer, 0, int(run[0]) * LINE, min(int(run[-1] + 1) * LINE, end))
        ]


def moves_of(node: Node, given: Sequence[Array], whole: Array) -> LaneMoves:
    """Of Gather only the first operand's numbers are moved; the other says which."""
    moved = given[:1] if node.op == "Gather" else given
    begins = (0, *np.cumsum([operand.size for operand in moved]).tolist())
    where = [
        np.arange(low, low + operand.size).reshape(operand.shape) for low, operand in zip(begins, moved, strict=False)
    ]
    numbers = compute(node, [*where, *given[len(moved) :]]).reshape(-1)
    lanes = 16 // whole.itemsize
    filled = np.arange(-len(numbers) % lanes) + numbers[-1] + 1  # a register ends behind the last number
    return LaneMoves(np.concatenate((numbers, filled)).reshape(-1, lanes), begins, whole.itemsize)


@lru_cache
def scattered(itemsize: int) -> MicroKernel:
    """A register of numbers from everywhere, each of them loaded and put in."""
    lines = [ld1(("y",), "x")]
    for at in range(1, 16 // itemsize):
        lines += [ld1(("a",), "x"), of(INSERT[itemsize], "y", "a", at=at)]
    return MicroKernel(f"gather {itemsize}", (), (*lines, st1(("y",), "y")), ())


def moved(team: Team, moves: LaneMoves, given: Iterable[Array] | None) -> Array | None:
    """The registers of the team's units, [units, 16]; None by shape. `given`: the operands whose numbers are moved."""
    units = units_of(team)
    together = moves.together[units]
    numbers = None
    if given is not None:
        flat = np.concatenate([operand.reshape(-1) for operand in given])
        numbers = flat[np.minimum(moves.numbers[units], len(flat) - 1)]
    out = None if numbers is None else np.empty((len(units), 16), np.uint8)
    for kernel, chosen in ((WHOLE, together), (scattered(moves.itemsize), ~together)):
        part, begin = [], 0
        for core, mine in team:
            count = int(chosen[begin : begin + len(mine)].sum())
            begin += len(mine)
            part += [(core, range(count))] if count else []
        if not part:
            continue
        x = None
        if numbers is not None:
            each = np.ascontiguousarray(numbers[chosen])
            if kernel is not WHOLE:  # a load takes what lies behind as well, which nothing is made of
                each = np.repeat(each[..., None], 16 // moves.itemsize, axis=-1)
            x = each.view(np.uint8).reshape(len(each), 1, -1)
        count = sum(len(mine) for _, mine in part)
        stored = sweep(part, kernel, (count,), 1, {"x": x}, {"y": 16})
        if out is not None and stored is not None:
            out[chosen] = stored["y"][:, 0]
    return out
