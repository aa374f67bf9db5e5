"""Text that is given as a file, or on standard input: rank 0 reads it, all ranks have it."""

from pathlib import Path

from meshrt.errors import UsageError
from meshrt.models.errors import ModelError
from meshrt.models.folders.files import MARK, MAX_TEXT_BYTES, read_text
from meshrt.ranks.control import Control
from meshrt.ranks.standardinput import StandardInput

INPUT = "-"  # standard input


def prompt_text(control: Control, prompt: str) -> str:
    """What --prompt says: a text; - is standard input, @FILE a file, @@ a text that begins with @. UsageError.

    A file, or what comes on standard input, may end with a line end, as those of editors and `echo` do: it is no part
    of the prompt.
    """
    if prompt.startswith("@@"):
        return prompt[1:]
    if prompt != INPUT and not prompt.startswith("@"):
        return prompt
    path = prompt.removeprefix("@")
    if not path:
        raise UsageError("--prompt @ names no file: @FILE reads one, @@ begins a text with @")
    way = "" if prompt == INPUT else "; a text that begins with @ is --prompt @@..."
    text = read_shared(control, f"--prompt {prompt}", path if prompt != INPUT else None, way)
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise UsageError(f"--prompt {prompt} has no text: the prompt is empty")
    return text


def read_shared(control: Control, named: str, path: str | None, way: str = "", part: bool = False) -> str:
    """The text of a file, of standard input where it is None, on all ranks; they call it together. UsageError.

    `named` is what it was asked for by, `way` what a message ends with; `part` is that of `read_text`. A mark that some
    editors put in front of UTF-8 is no part of the text.
    """
    text: str = ""
    problem: str | None = None
    if control.rank == 0:
        try:
            text = read_input(control) if path is None else read_text(Path(path), MAX_TEXT_BYTES, part)
        except ModelError as error:
            problem = f"{named} cannot be read: {error}{way}"
    problem, text = control.bcast((problem, text))
    if problem is not None:
        raise UsageError(problem)
    return text.removeprefix(MARK)


def read_input(control: Control) -> str:
    """All of standard input. ModelError."""
    try:
        data = StandardInput(control.board).all(MAX_TEXT_BYTES)
        if len(data) > MAX_TEXT_BYTES:
            raise ModelError(f"standard input has more than {MAX_TEXT_BYTES} bytes, which is the limit for a text")
        return data.decode("utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"standard input is not readable as UTF-8 text: {error}") from error
