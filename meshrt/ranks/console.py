"""What a run says while it runs: text as it comes, and progress: a bar on a terminal, a line a minute elsewhere.

Only rank 0 has a voice.
"""

import os
import sys
from dataclasses import field
from time import monotonic
from typing import Protocol

from meshrt.records import dataclass
from meshrt.units import duration

MINUTE = 60.0  # seconds between two lines of progress
SOON = 2.0  # seconds of work from which on what is left of it is said
SAVE, BACK = "\x1b7", "\x1b8"  # the place of the cursor: DECSC, DECRC


class Turns(Protocol):
    """A dialogue that goes on in one run. An answer has `limit` tokens at most."""

    limit: int

    def next(self, new: list[int], computed: int) -> list[int] | None:
        """An answer has ended; so many tokens were computed for it. The tokens that the next one follows, beside all so
        far; None where there is none in this run. All ranks call it."""
        ...


@dataclass(eq=False)
class Console:
    """`loud` prints text; `terminal` draws progress, on standard error, and wipes it again; `logs` says it a line a
    minute there.

    `alone`: standard output has answers alone, without their prompts. `notes` are said beside them, on standard error.
    """

    loud: bool = False
    terminal: bool = False
    alone: bool = False
    notes: bool = True
    since: float = field(default_factory=monotonic)
    drawn: bool = False
    column: int = 0  # of the terminal, where the text so far ends
    turns: Turns | None = None
    logs: bool = False
    said: float = field(default_factory=monotonic)  # when the last line of progress was
    work: tuple[str, int, float] = "", 0, 0.0  # what goes on, and from how much done on since when

    def text(self, piece: str) -> None:
        """Print a piece of text, at once and without a line end."""
        self.clear()
        if self.loud:
            sys.stdout.write(piece)
            sys.stdout.flush()
            self.column = len(piece.rpartition("\n")[2]) + (0 if "\n" in piece else self.column)

    def note(self, line: str) -> None:
        """Print a line that is no part of an answer."""
        self.clear()
        if self.loud and self.notes:
            print(line, file=sys.stderr if self.alone else sys.stdout, flush=True)
            self.column = 0

    def progress(self, title: str, done: int, total: int) -> None:
        """Draw a bar, if there is a terminal and the work has taken half a second already; behind the text of an open
        line, which it must not wipe, if there is room. In a log it is a line a minute.
        """
        if not (self.terminal or self.logs):
            return
        now = monotonic()
        if self.work[0] != title or done <= self.work[1]:
            self.work = title, done, now
        _, begun, since = self.work
        left = ""
        if now - since > SOON and done < total:
            left = f", {duration((now - since) * (total - done) / (done - begun))} left"
        if not self.terminal:
            if now - self.said >= MINUTE:
                self.said = now
                print(f"meshrt: {title} {done}/{total}{left}", file=sys.stderr, flush=True)
            return
        if now - self.since < 0.5:
            return
        filled = 30 * done // max(total, 1)
        bar = f"{title} [{'#' * filled}{'.' * (30 - filled)}] {done}/{total}{left}"
        if self.column:
            from shutil import get_terminal_size  # of terminals alone

            width = get_terminal_size().columns
            self.clear()
            if self.column % width + len(bar) + 3 > width:
                return
            bar = f"{SAVE}  {bar}"
        sys.stderr.write(f"\r{bar}" if not self.column else bar)
        sys.stderr.flush()
        self.drawn = True

    def clear(self) -> None:
        """Wipe the bar."""
        if self.drawn:
            sys.stderr.write(f"{BACK if self.column else chr(13)}\x1b[K")
            sys.stderr.flush()
            self.drawn = False


def make_console(rank: int, size: int, quiet: bool, alone: bool = False) -> Console:
    """Rank 0 speaks unless told to be quiet; answers `alone` are what was asked for, and come all the same.

    A rank cannot see by itself whether there is a terminal: Open MPI gives it one in a pipeline, MPICH none on a
    terminal. So under a launcher only MESHRT_TERMINAL=1, which `meshrt launch` sets, is believed.
    """
    setting = os.environ.get("MESHRT_TERMINAL", "")
    terminal = setting == "1" or (setting == "" and size == 1 and sys.stderr.isatty())
    loud = rank == 0 and not quiet
    draws = loud and terminal and os.environ.get("TERM") != "dumb"
    return Console(loud or (rank == 0 and alone), draws, alone, notes=not quiet, logs=loud and not draws)
