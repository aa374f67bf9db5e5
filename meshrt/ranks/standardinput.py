"""Standard input as rank 0 reads it: it may take minutes, in which the rank says that it waits, and for what."""

import os
import select
import sys

from meshrt.ranks.board import Board
from meshrt.records import dataclass

LOOK = 0.1  # seconds from one word on the board to the next: less than any watch has patience for
CHUNK = 1 << 16  # bytes


@dataclass(eq=False)
class StandardInput:
    """The bytes of standard input, read as they come: `pending` are those that nobody has asked for yet."""

    board: Board
    pending: bytes = b""
    ended: bool = False

    @property
    def terminal(self) -> bool:
        return sys.stdin is not None and sys.stdin.isatty()

    def line(self, most: int) -> bytes:
        """The next line with its end, of which the last may have none; nothing at the end of the input. OSError.

        Of a longer line the first `most` bytes or a few more.
        """
        while b"\n" not in self.pending and len(self.pending) < most and not self.ended:
            self._read()
        at = self.pending.find(b"\n") + 1 or len(self.pending)
        line, self.pending = self.pending[:at], self.pending[at:]
        return line

    def all(self, most: int) -> bytes:
        """What is left of it; where that is more than `most` bytes, the first of them. OSError."""
        parts = [self.pending]
        length = len(self.pending)
        while length <= most and not self.ended:
            self.pending = b""
            self._read()
            parts.append(self.pending)
            length += len(self.pending)
        self.pending = b""
        return b"".join(parts)

    def _read(self) -> None:
        """What comes next. On the board this is a wait of its own again and again: the others wait for this rank."""
        if sys.stdin is None:  # closed, as by a shell's <&-
            raise OSError("it is closed")
        descriptor = sys.stdin.fileno()
        while not select.select([descriptor], [], [], LOOK)[0]:
            self.board.waiting(-1, b"standard input")
        self.board.moving()
        chunk = os.read(descriptor, CHUNK)
        self.ended = not chunk
        self.pending += chunk
