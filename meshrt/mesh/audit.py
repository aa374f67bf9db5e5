"""What a user's own program forgets: transfers that no core waits for, and core memory that is read before it is
written. It is kept while the program runs and looked at when `run` has returned; a packaged program keeps nothing.
"""

import sys
from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.errors import UsageError

if TYPE_CHECKING:
    from meshrt.mesh.block import Block
    from meshrt.mesh.memory import Memory
    from meshrt.mesh.wires.replay import Arrival


@dataclass
class Audit:
    """Of this rank's cores. `path` is the program's name to its user, `file` that of its code."""

    path: str
    file: str
    sent: list[tuple[int, list["Arrival"]]] = field(default_factory=list)  # line of the file, what was to arrive
    kept: int = 1000  # transfers, before those that were received are dropped
    fresh: dict[tuple[int, str], tuple[int, np.ndarray]] = field(default_factory=dict)  # line, numbers

    def sends(self, arrivals: list["Arrival"]) -> None:
        """A transfer has left."""
        self.sent.append((self._line(), arrivals))
        if len(self.sent) > self.kept:
            self.sent = self.open()
            self.kept = 1000 + 2 * len(self.sent)

    def open(self) -> list[tuple[int, list["Arrival"]]]:
        """Transfers that nobody has received, or not all of them."""
        return [(line, arrivals) for line, arrivals in self.sent if not all(one.over for one in arrivals)]

    def makes(self, memory: "Memory", name: str, numbers: np.ndarray) -> np.ndarray:
        """Fresh core memory under that name. Returns the same numbers as an array of its own, which may go as it would.

        It does not refer to `numbers` as a view does, so what a core is charged for goes when the program lets it go.
        """
        at, live = id(memory), {charge.name for charge in memory.arrays.values()}
        self.fresh = {key: made for key, made in self.fresh.items() if key[0] != at or key[1] in live}
        self.fresh[at, name] = self._line(), numbers
        return np.frombuffer(numbers.view(np.uint8).data, np.uint8).view(numbers.dtype).reshape(numbers.shape)

    def unwritten(self) -> dict[tuple[str, int], int]:
        """(name, line) of what still holds fresh memory's NaN, to the bit -> at how many cores."""
        found = {}
        for (_, name), (line, numbers) in self.fresh.items():
            if numbers.dtype.kind not in "iub":
                bits = f"u{numbers.dtype.itemsize}"
                blank = np.full((), np.nan, numbers.dtype).view(bits)
                cores = (numbers.view(bits) == blank).reshape(*numbers.shape[:2], -1).any(axis=2)
                if cores.any():
                    found[name, line] = int(cores.sum())
        return found

    def _line(self) -> int:
        """Of the program's file, that is being run."""
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return frame.f_lineno


def report(block: "Block", result: dict[str, Any]) -> None:
    """When a program has ended, on all ranks: UsageError for what was not received, a warning for NaN at rank 0."""
    audit = block.audit
    assert audit is not None
    left = [line for line, _ in audit.open()]
    if left:
        raise UsageError(
            f"{audit.path}, line {min(left)}: nobody has received what is sent there, so its time is in no clock and no"
            f" core has waited for it ({len(left)} transfers in all): give what `send` returns to `fabric.receive`"
        )
    nameless = block.control.bcast([name for name, value in result.items() if _has_nan(value)])
    if not nameless or not block.payload:
        return
    ranks = block.control.gather(audit.unwritten())
    if ranks is None:
        return
    cores: dict[tuple[str, int], int] = {}
    for found in ranks:
        for key, count in found.items():
            cores[key] = cores.get(key, 0) + count
    told = [
        f"{name!r} of {audit.path}, line {line}, at {count} of {block.mesh.width * block.mesh.height} cores"
        for (name, line), count in cores.items()
    ]
    where = f"core memory that was never written: {'; '.join(told)}" if told else "all core memory was written"
    block.console.clear()
    print(f"meshrt: warning: the result's {', '.join(map(repr, nameless))} is NaN; {where}", file=sys.stderr)


def _has_nan(value: Any) -> bool:
    if isinstance(value, float):
        return isnan(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_nan, parts))
