"""A dialogue: what was said so far as text, and the tokens of it that the next answer follows."""

import sys
from dataclasses import field
from typing import TYPE_CHECKING

from meshrt.errors import UsageError
from meshrt.models.folders.files import MAX_TEXT_BYTES
from meshrt.models.tokenizer import decode, encode
from meshrt.ranks.standardinput import StandardInput
from meshrt.records import dataclass

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(eq=False)
class Dialogue:
    """`turns` are a line and its answer each, the oldest first; `ids` the tokens that a run has of them, what was said
    as it was said. A prompt has at most `room` tokens."""

    tokenizer: "Tokenizer"
    room: int
    turns: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def hear(self, line: str) -> str | list[int]:
        """Add a line; an empty one adds nothing, so that the last answer goes on. Its tokens, to be added to `ids`; or
        why it was not taken. Where the text has become too long the oldest turns are forgotten, `ids` is empty, and all
        tokens are those of what is left. ModelError.
        """
        if line:
            tokens = len(encode(self.tokenizer, line))
            if tokens > self.room:
                return f"that line has {tokens} tokens, and there is room for {self.room}: not taken"
            self.turns.append(line)
        if not self.turns:
            return "nothing was said yet"
        if self.ids:
            more = encode(self.tokenizer, "\n" + line, special=False) if line else []
            if len(self.ids) + len(more) <= self.room:
                return more
        self.ids = []
        while len(self.turns) > 1 and len(self._text_ids()) > self.room:
            del self.turns[0]
        if len(self._text_ids()) > self.room:  # one turn that went on and on
            return f"the text has no room for more: the model has {self.room} tokens for it. Begin with another line"
        return self._text_ids()

    def _text_ids(self) -> list[int]:
        """The text so far, a turn in a line."""
        return encode(self.tokenizer, "\n".join(self.turns))

    def answered(self, new: list[int]) -> None:
        """The last turn has an answer. A character that the last token left unfinished is no part of its text."""
        before, text = decode(self.tokenizer, self.ids), decode(self.tokenizer, [*self.ids, *new])
        self.turns[-1] += text[len(before) :].rstrip("\ufffd")
        self.ids += new


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
