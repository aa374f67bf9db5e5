"""From text to token ids and back: the prompt of a run, and the text that it prints as it comes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshrt.errors import UsageError
from meshrt.programs.generation.given import prompt_text
from meshrt.programs.generation.options import MOST_TOKENS, PROMPT, GenerationOptions
from meshrt.ranks.console import Console
from meshrt.ranks.control import Control
from meshrt.records import dataclass
from meshrt.whole import whole_numbers

if TYPE_CHECKING:
    from tokenizers import Tokenizer


SHAPE_TOKENS = 128  # of the prompt of a model that is a shape alone


@dataclass(frozen=True)
class Prompt:
    """Token ids of a vocabulary, or so many tokens of `context` in their place; the tokenizer, at rank 0, if any."""

    ids: tuple[int, ...]
    vocabulary: int
    context: int = 0
    tokenizer: "Tokenizer | None" = None

    def __len__(self) -> int:
        """Tokens before the first new one."""
        return len(self.ids) + self.context

    def decode(self, ids: list[int]) -> str | None:
        """Their text; None without a tokenizer."""
        from meshrt.models.tokenizer import decode

        return None if self.tokenizer is None else decode(self.tokenizer, ids)


def read_prompt(control: Control, folder: Path, vocabulary: int, options: GenerationOptions) -> Prompt:
    """The prompt, the same ids on all ranks, from text, from ids, or of so many tokens. UsageError, ModelError.

    `prompt_tokens` asks for a prompt of that length, whatever it says: the ids from 1 on, round and round. So is one
    made where nothing is asked for and the folder has the shape of a model alone. `context`,
    where it is not 0, stands for a prompt: then there are no ids.
    """
    prompt, prompt_ids, tokens, context = options.prompt, options.prompt_ids, options.prompt_tokens, options.context
    if sum(source is not None for source in (prompt, prompt_ids, tokens)) > 1:
        raise UsageError("--prompt, --prompt-ids and --prompt-tokens say the same thing: give one of them")
    if context:
        if any(source is not None for source in (prompt, prompt_ids, tokens)):
            raise UsageError(f"--context {context} stands for a prompt: leave --context or the prompt away")
        return Prompt((), vocabulary, context)
    if prompt is None and prompt_ids is None and tokens is None and not _has_words(folder):
        tokens = SHAPE_TOKENS
    if tokens is not None:
        if not 1 <= tokens <= MOST_TOKENS:
            raise UsageError(f"--prompt-tokens is {tokens}; it is 1 to {MOST_TOKENS}")
        return Prompt(tuple((1 + number % max(1, vocabulary - 1)) % vocabulary for number in range(tokens)), vocabulary)
    text = PROMPT if prompt is None else prompt_text(control, prompt)
    return encoded(control, folder, vocabulary, text, None if prompt_ids is None else parse_ids(prompt_ids))


def _has_words(folder: Path) -> bool:
    """Does a model's folder have a tokenizer, or weights, which are of little use without one?"""
    return (folder / "tokenizer.json").is_file() or any(folder.glob("*.safetensors"))


def encoded(
    control: Control, folder: Path, vocabulary: int, text: str, known_ids: Sequence[int] | None = None,
    way: str | None = None,
) -> Prompt:  # fmt: skip
    """A text as a prompt, as it stands, or ids in its place. All ranks call it. UsageError, ModelError, with a `way`
    out where a tokenizer is missing; by default token ids.
    """
    from meshrt.models.errors import ModelError
    from meshrt.models.tokenizer import BY_IDS, encode, load_tokenizer

    if text == "":
        raise UsageError("the prompt is empty: give --prompt some text")
    tokenizer, ids, problem = None, known_ids, None
    if control.rank == 0:
        try:
            tokenizer = load_tokenizer(folder, way or BY_IDS)
            ids = encode(tokenizer, text) if known_ids is None else known_ids
        except ModelError as error:
            problem = error if known_ids is None else None
    ids, problem = control.bcast((ids, problem))
    if problem is not None:
        raise problem
    if not ids:
        raise UsageError(f"the prompt {text!r} has no tokens: give --prompt another text")
    wrong = [token for token in ids if not 0 <= token < vocabulary]
    if wrong:
        raise UsageError(f"token id {wrong[0]} is not in the model's vocabulary of {vocabulary}: 0 to {vocabulary - 1}")
    return Prompt(tuple(ids), vocabulary, tokenizer=tokenizer)


def parse_ids(text: str) -> list[int]:
    """'1,2,3' -> [1, 2, 3]. UsageError."""
    try:
        return whole_numbers(text)
    except ValueError:
        raise UsageError(f"--prompt-ids {text!r} is not a list of numbers such as 1,2,3") from None


class Teller:
    """Prints the text as it comes: after the prompt, or the answer alone. By shape, without `payload`, nothing."""

    def __init__(self, console: Console, prompt: Prompt, payload: bool) -> None:
        self.console, self.prompt, self.payload, self.printed = console, prompt, payload, ""
        if console.alone and console.loud:
            text = prompt.decode([*prompt.ids])
            if text is None:
                raise UsageError("there is no text without a tokenizer.json in the model's folder: leave --text away")
            self.printed = text.rstrip("\ufffd")

    def tell(self, new: list[int], all_there: bool = False) -> None:
        """Print what the newest tokens add. A character that is not whole waits, unless they are `all_there`."""
        text = self.prompt.decode([*self.prompt.ids, *new]) if self.payload else None
        if text is not None and (all_there or not text.endswith("\ufffd")) and text.startswith(self.printed):
            self.console.text(text[len(self.printed) :])
            self.printed = text

    def skip(self, new: list[int]) -> None:
        """So much is there that nobody needs to be told of."""
        self.printed = (self.prompt.decode([*self.prompt.ids, *new]) or "").rstrip("\ufffd")

    def end(self) -> None:
        if self.printed or self.console.alone:
            self.console.text("\n" if self.console.alone else "\n\n")
