"""CSL text to tokens."""

import re
from typing import NamedTuple

from meshrt.csl.errors import SourceLocation, wrong


class Token(NamedTuple):
    kind: str  # int, float, string, char, name, builtin, op, end
    text: str
    line: int


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|//[^\n]*)
      | (?P<newline>\n)
      | (?P<float>0x[0-9a-fA-F_]*\.[0-9a-fA-F_]*(?:[pP][+-]?\d+)?
                 |\d[\d_]*\.\d[\d_]*(?:[eE][+-]?\d+)?|\d[\d_]*[eE][+-]?\d+)
      | (?P<int>0x[0-9a-fA-F_]+|0b[01_]+|0o[0-7_]+|\d[\d_]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<char>'(?:[^'\\\n]|\\.)')
      | (?P<builtin>@[A-Za-z_]\w*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<op><<=|>>=|==|!=|<=|>=|->|=>|\+=|-=|\*=|/=|%=|&=|\|=|\^=|<<|>>|\.\*|\.\{|[-+*/%&|^~!<>=(){}\[\],;:.?])
    """,
    re.VERBOSE,
)  # fmt: skip


def tokens(text: str, file: str) -> list[Token]:
    """All tokens, with an end at the end. CslError."""
    tokens: list[Token] = []
    line, at = 1, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise wrong(SourceLocation(file, line), f"{text[at]!r} begins nothing that CSL has")
        at = match.end()
        kind = match.lastgroup
        if kind == "newline":
            line += 1
        elif kind != "space":
            assert kind is not None
            tokens.append(Token(kind, match.group(), line))
    return [*tokens, Token("end", "the end of the file", line)]
