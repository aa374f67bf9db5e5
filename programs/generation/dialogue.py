"""A dialogue: what was said so far as text, and the tokens of it that the next answer follows."""

import sys
from dataclasses import field
from typing import TYPE_CHECKING

from meshrt.errors import UsageError
from meshrt.models.files import MAX_TEXT_BYTES
from meshrt.models.tokenizer import decode, encode
from meshrt.ranks.standardinput import StandardInput
from meshrt.records import dataclass

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(eq=False)
class Dialogue:
    """`turns` are a line and its answer each, the oldest first. A prompt of at most `room` tokens is made of them."""

    tokenizer: "Tokenizer"
    room: int
    turns: list[str] = field(default_factory=list)

    def hear(self, line: str) -> str | None:
        """Add a line; an empty one adds nothing, so that the last answer goes on. Why it was not taken, if it was not.

        The oldest turns are forgotten where the text has become too long. ModelError.
        """
        if line:
            tokens = len(encode(self.tokenizer, line))
            if tokens > self.room:
                return f"that line has {tokens} tokens, and there is room for {self.room}: not taken"
            self.turns.append(line)
        if not self.turns:
            return "nothing was said yet"
        while len(self.turns) > 1 and len(self.ids()) > self.room:
            del self.turns[0]
        if len(self.ids()) > self.room:  # one turn that went on and on
            return f"the text has no room for more: the model has {self.room} tokens for it. Begin with another line"
        return None

    def ids(self) -> list[int]:
        """The text so far, a turn in a line. ModelError."""
        return encode(self.tokenizer, "\n".join(self.turns))

    def answered(self, prompt: list[int], new: list[int]) -> None:
        """The last turn has an answer. A character that the last token left unfinished is no part of it."""
        before, text = decode(self.tokenizer, prompt), decode(self.tokenizer, [*prompt, *new])
        self.turns[-1] += text[len(before) :].rstrip("\ufffd")


def read_line(source: StandardInput) -> str | None:
    """The next line of standard input, None at its end. UsageError."""
    if source.terminal:
        print("> ", end="", file=sys.stderr, flush=True)
    try:
        line = source.line(MAX_TEXT_BYTES)
        if source.terminal and not line:
            print(file=sys.stderr)
        return line.decode("utf-8").strip() if line else None
    except (OSError, ValueError) as error:
        raise UsageError(f"standard input is not readable as UTF-8 text: {error}") from error
