"""Text to token ids and back, by the tokenizer.json of the model folder.

Special tokens are added as its post-processor says, and only those. Padding and truncation are not for prompts: a file
that asks for them has them from training.
"""

import json
import os
from binascii import a2b_base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshrt.models.errors import ModelError
from meshrt.models.folders.files import MAX_TEXT_BYTES, find_file, read_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PARTS = "normalizer", "pre_tokenizer", "decoder"  # that change a text
BY_IDS = "--prompt-ids 1,2,3 works without one"  # the way out of a run
FOR_TEXT = "text is read by it: put the model's own there"  # and of what has no prompt
MAX_GROWTH = 1000  # times that a file's replacements may lengthen a text; those of real models double it


def load_tokenizer(folder: str | Path, way: str = BY_IDS) -> "Tokenizer":
    """Loads tokenizer.json. Raises ModelError, with a `way` out, if it or the library is missing, or if it is not
    usable.
    """
    path = find_file(Path(folder), "tokenizer.json")
    if path is None:
        raise ModelError(f"{folder}: no tokenizer.json there; {way}")
    try:
        from tokenizers import Tokenizer  # only the rank that reads the prompt pays for it
    except ImportError as error:
        raise ModelError(f"the tokenizers library is needed for text ({error}): pip install tokenizers") from error
    text = read_text(path, MAX_TEXT_BYTES)
    data = _parsed(path, text, way)
    _check_tables(path, data, way)
    _check_growth(path, [data.get(name) for name in PARTS])  # before the library normalizes added tokens
    with _told(f"{path}: not a usable tokenizer; {way}"):
        tokenizer = Tokenizer.from_str(text)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        parts = [getattr(tokenizer, name) for name in PARTS]
        states = [None if part is None else json.loads(part.__getstate__()) for part in parts]
    _check_growth(path, states)
    return tokenizer


def encode(tokenizer: "Tokenizer", text: str, special: bool = True) -> list[int]:
    """Without `special` tokens it is a text that goes on.

    Raises ModelError for what is no text (bytes that are not UTF-8) and for what the tokenizer cannot encode.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes of a command line that are no characters
        raise ModelError(f"{text!r} is not UTF-8 text; --prompt-ids 1,2,3 takes any tokens") from error
    with _told(f"the model's tokenizer fails on this text; {BY_IDS}"):
        return list(tokenizer.encode(text, add_special_tokens=special).ids)


def decode(tokenizer: "Tokenizer", ids: list[int]) -> str:
    """The text of the ids, special tokens left out. Raises ModelError for an id that is no id."""
    try:
        with _told("not token ids"):
            return tokenizer.decode(list(ids))
    except ModelError as error:
        raise ModelError(f"{error}: {ids}") from error


def _parsed(path: Path, text: str, way: str) -> dict[str, Any]:
    """The file as JSON. ModelError for what is none: the library acts on what it has read before it comes to that."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise ModelError(f"{path}: not a usable tokenizer; {way} ({why})") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path}: not a usable tokenizer; {way} (it is no JSON object)")
    return data


def _check_tables(path: Path, data: dict[str, Any], way: str) -> None:
    """ModelError for a table of characters that says to be larger than it is.

    The library makes room for what its first four bytes say, twice over: where that is gigabytes, on a machine that has
    not got them, the process is aborted.
    """
    parts: list[Any] = [data]
    while parts:
        part = parts.pop()
        table = part.get("precompiled_charsmap") if isinstance(part, dict) else None
        if isinstance(table, str):
            size, room = _first_number(table), len(table) * 3 // 4 - 4
            if size > room:
                raise ModelError(
                    f"{path}: 'precompiled_charsmap' says that {size} bytes of characters follow, and it has {room} at"
                    f" most; {way}"
                )
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()


def _check_growth(path: Path, parts: Sequence[Any]) -> None:
    """ModelError for parts that together lengthen a text by too much."""
    try:
        growth = prod(_growth(part) for part in parts)
    except RecursionError as error:
        raise ModelError(f"{path}: not a usable tokenizer: it is nested too deeply") from error
    if growth > MAX_GROWTH:
        raise ModelError(
            f"{path}: its replacements make a text more than {MAX_GROWTH} times as long, which is too much"
        )


def _first_number(table: str) -> int:
    """The first four bytes of what is in base64; 0 for what is not."""
    try:
        return int.from_bytes(a2b_base64(table[:8])[:4], "little")
    except ValueError:
        return 0


def _growth(part: Any) -> int:
    """By how much the replacements in a part of a tokenizer, one after the other, may lengthen a text."""
    growth = 1
    if isinstance(part, dict):
        content = part.get("content")
        growth += len(content) if part.get("type") == "Replace" and isinstance(content, str) else 0
        growth += part.get("type") == "ByteLevel"  # a character for each byte, of which most that it makes have two
        part = [*part.values()]
    for child in part if isinstance(part, list) else []:
        growth = min(growth * _growth(child), MAX_GROWTH + 1)
    return growth


@contextmanager
def _told(message: str) -> Iterator[None]:
    """ModelError for all that goes wrong in the library.

    It raises bare Exception, and where it had not thought of something it panics: that is no Exception at all, and it
    is written to the process's standard error, past Python.
    """
    try:
        with _quiet():
            yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"{message} ({error})") from error


@contextmanager
def _quiet() -> Iterator[None]:
    try:
        saved = os.dup(2)
    except OSError:  # there is no standard error
        yield
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
