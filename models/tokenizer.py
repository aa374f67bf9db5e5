"""Text to token ids and back, by the tokenizer.json of the model folder.

Special tokens are added as its post-processor says, and only those.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from meshrt.models.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def load_tokenizer(folder: str | Path) -> "Tokenizer":
    """Loads tokenizer.json. Raises ModelError if it or the library is missing, or if it is not usable."""
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder}: no tokenizer.json there; --prompt-ids 1,2,3 works without one")
    try:
        from tokenizers import Tokenizer  # only the rank that reads the prompt pays for it
    except ImportError as error:
        raise ModelError(f"the tokenizers library is needed for text ({error}); --prompt-ids works without") from error
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path}: not a usable tokenizer ({error}); --prompt-ids 1,2,3 works without one") from error


def encode(tokenizer: "Tokenizer", text: str) -> list[int]:
    return list(tokenizer.encode(text).ids)


def decode(tokenizer: "Tokenizer", ids: list[int]) -> str:
    """The text of the ids, special tokens left out. Raises ModelError for an id that is no id."""
    try:
        return tokenizer.decode(list(ids))
    except (OverflowError, TypeError) as error:
        raise ModelError(f"not token ids: {ids}") from error
