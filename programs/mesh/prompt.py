"""From text to token ids and back: the prompt of a run, and the text that it prints as it comes."""

from pathlib import Path
from typing import TYPE_CHECKING

from meshrt.errors import UsageError
from meshrt.models.config import Config
from meshrt.ranks.console import Console
from meshrt.ranks.control import Control
from meshrt.whole import whole_numbers

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PROMPT = "Once upon a time"
MOST_TOKENS = 10_000_000  # of a prompt that says nothing: their ids alone take a second to count


def read_prompt(
    control: Control,
    folder: Path,
    config: Config,
    prompt: str | None,
    prompt_ids: str | None,
    tokens: int | None = None,
    context: int = 0,
) -> tuple["Tokenizer | None", tuple[int, ...]]:
    """The tokenizer (rank 0 only, None where the model has none and ids are given) and the ids, on all ranks.

    `tokens` asks for a prompt of that length, whatever it says: the ids from 1 on, round and round. `context`, where it
    is not 0, stands for a prompt: then there are no ids. UsageError.
    """
    from meshrt.models.errors import ModelError
    from meshrt.models.tokenizer import encode, load_tokenizer

    if sum(given is not None for given in (prompt, prompt_ids, tokens)) > 1:
        raise UsageError("--prompt, --prompt-ids and --prompt-tokens say the same thing: give one of them")
    if context:
        if any(given is not None for given in (prompt, prompt_ids, tokens)):
            raise UsageError(f"--context {context} stands for a prompt: leave --context or the prompt away")
        return None, ()
    if tokens is not None:
        if not 1 <= tokens <= MOST_TOKENS:
            raise UsageError(f"--prompt-tokens is {tokens}; it is 1 to {MOST_TOKENS}")
        return None, tuple((1 + at % max(1, config.vocab_size - 1)) % config.vocab_size for at in range(tokens))
    if prompt == "":
        raise UsageError("the prompt is empty: give --prompt some text")
    tokenizer, ids, problem = None, None, None
    if control.rank == 0:
        try:
            tokenizer = load_tokenizer(folder)
            if prompt_ids is None:
                ids = encode(tokenizer, PROMPT if prompt is None else prompt)
        except ModelError as error:
            problem = error
    if prompt_ids is not None:
        ids, problem = parse_ids(prompt_ids), None
    ids, problem = control.bcast((ids, problem))
    if problem is not None:
        raise problem
    if not ids:
        raise UsageError(f"the prompt {prompt!r} has no tokens: give --prompt another text")
    wrong = [one for one in ids if not 0 <= one < config.vocab_size]
    if wrong:
        raise UsageError(
            f"token id {wrong[0]} is not in the model's vocabulary of {config.vocab_size}: 0 to {config.vocab_size - 1}"
        )
    return tokenizer, tuple(ids)


def parse_ids(text: str) -> list[int]:
    """'1,2,3' -> [1, 2, 3]. UsageError."""
    try:
        return whole_numbers(text)
    except ValueError:
        raise UsageError(f"--prompt-ids {text!r} is not a list of numbers such as 1,2,3") from None


class Teller:
    """Prints the text as it comes; rank 0 has the tokenizer."""

    def __init__(self, console: Console, tokenizer: "Tokenizer | None", ids: tuple[int, ...]) -> None:
        self.console, self.tokenizer, self.ids, self.printed = console, tokenizer, ids, ""

    def tell(self, new: list[int]) -> None:
        """Print what the newest tokens add. A character that is not whole yet waits."""
        text = self._decode([*self.ids, *new])
        if text is not None and not text.endswith("\ufffd") and text.startswith(self.printed):
            self.console.text(text[len(self.printed) :])
            self.printed = text

    def end(self) -> None:
        if self.printed:
            self.console.text("\n\n")

    def text(self, new: list[int]) -> str | None:
        """The new tokens' text; None without a tokenizer."""
        return self._decode(new)

    def _decode(self, ids: list[int]) -> str | None:
        from meshrt.models.tokenizer import decode as words

        return None if self.tokenizer is None else words(self.tokenizer, ids)
