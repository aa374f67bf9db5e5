"""The tokens of a file, one after the other, for the parser."""

from __future__ import annotations

from dataclasses import dataclass

from meshrt.csl.errors import CslError, SourceLocation, wrong
from meshrt.csl.syntax.lexer import Token


@dataclass
class TokenReader:
    """What is read next is `token`."""

    file: str
    tokens: list[Token]
    at: int = 0

    @property
    def token(self) -> Token:
        """What is read next; at the end of the file again and again its last token, of kind "end"."""
        return self.tokens[self.at]

    def peek(self, ahead: int = 1) -> Token:
        """So many tokens behind that."""
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def next(self) -> Token:
        """Read a token, whatever it is."""
        token = self.tokens[self.at]
        self.at += token.kind != "end"
        return token

    def has(self, text: str) -> bool:
        """Is this word or sign next? A text of the program that reads so is neither."""
        token = self.tokens[self.at]
        return token.text == text and token.kind in ("op", "name", "builtin")

    def take(self, text: str) -> bool:
        """Read it if it is next. Was it?"""
        if self.has(text):
            self.at += 1
            return True
        return False

    def want(self, text: str, of: str) -> Token:
        """Read it. CslError, with what it belongs to, where it is not next."""
        if not self.has(text):
            raise self.wrong(f"{text!r} is missing in {of}, there is {self.token.text!r}")
        return self.next()

    def name(self, of: str) -> str:
        """Read a name, in what this belongs to. CslError."""
        if self.token.kind != "name":
            raise self.wrong(f"a name is missing in {of}, there is {self.token.text!r}")
        return self.next().text

    def wrong(self, message: str) -> CslError:
        """An error at the line of the next token."""
        return wrong(SourceLocation(self.file, self.token.line), message)
