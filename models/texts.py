"""Texts to calibrate on and to be measured on, as sequences of token ids: generated stories, or a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.folders.files import MARK, MAX_TEXT_BYTES, read_text
from meshrt.models.stories import HELD_OUT_SEED, stories
from meshrt.models.tokenizer import encode
from meshrt.records import dataclass

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WINDOW = 512


@dataclass(frozen=True)
class SampleText:
    """A text to calibrate on, or to be measured on: a file, or else so many generated stories of a seed."""

    path: str | None
    stories: int
    seed: int = HELD_OUT_SEED

    def sequences(self, config: Config, tokenizer: "Tokenizer") -> list[list[int]]:
        """Its token ids. Raises ModelError."""
        if self.path is not None:
            return file_sequences(config, tokenizer, self.path)
        return story_sequences(config, tokenizer, self.seed, self.stories)

    def __str__(self) -> str:
        of_seed = ", held out" if self.seed == HELD_OUT_SEED else f" of seed {self.seed}"
        return self.path or f"{self.stories} stories{of_seed}"


def story_sequences(config: Config, tokenizer: "Tokenizer", seed: int, count: int) -> list[list[int]]:
    """`count` generated stories, each with the end-of-text id that ends it, as far as the model has positions."""
    end = [token for token in config.eos_token_ids[:1] if token < config.vocab_size]
    return [[*_encoded(config, tokenizer, text), *end][: config.max_positions + 1] for text in stories(seed, count)]


def file_sequences(config: Config, tokenizer: "Tokenizer", path: str | Path) -> list[list[int]]:
    """A UTF-8 text in windows of up to 512 tokens, each beginning with the last token of the one before.

    So every token but the first is predicted once. Raises ModelError.
    """
    ids = _encoded(config, tokenizer, read_text(Path(path), MAX_TEXT_BYTES).removeprefix(MARK))
    if len(ids) < 2:
        raise ModelError(f"{path}: {len(ids)} tokens of text; at least 2 are needed")
    return windows(ids, min(WINDOW, config.max_positions))


def _encoded(config: Config, tokenizer: "Tokenizer", text: str) -> list[int]:
    """ModelError for a token that the model does not have: the tokenizer is another's."""
    ids = encode(tokenizer, text)
    if max(ids, default=0) >= config.vocab_size:
        raise ModelError(
            f"the tokenizer makes token {max(ids)} of the text, and the model's vocabulary is 0 to"
            f" {config.vocab_size - 1}: put the model's own tokenizer.json there"
        )
    return ids


def windows(ids: Sequence[int], tokens: int) -> list[list[int]]:
    """Windows of tokens + 1 ids (the last one may be shorter) that overlap by one."""
    return [list(ids[at : at + tokens + 1]) for at in range(0, len(ids) - 1, tokens)]
