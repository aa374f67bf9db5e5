"""What is read of a model folder: files of that folder, of a bounded size, as bytes and JSON. Nothing in it is run.

A folder may come from anywhere. So a link in it leads to no file elsewhere, but for the layout of the Hugging Face
cache, whose snapshots are links into the `blobs` beside them.
"""

import json
import os
from pathlib import Path
from typing import Any

from meshrt.models.errors import ModelError

MAX_JSON_BYTES = 16 << 20  # of config.json, an index, a tensor header: 100,000 tensors and more
MAX_TEXT_BYTES = 64 << 20  # of tokenizer.json, whose vocabulary may have some 250,000 words, or of a text
MARK = "\ufeff"  # that some editors put in front of UTF-8


def find_file(folder: Path, name: str) -> Path | None:
    """The file of that name in a model folder, or None. Raises ModelError for one that lies elsewhere."""
    path = folder / name
    if not os.path.isfile(path):
        return None
    root, real = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    homes = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    if not any(real.is_relative_to(home) for home in homes):
        raise ModelError(f"{path}: is a link to {real}, outside the model folder: put the file itself there")
    return path


def read_text(path: Path, most: int, part: bool = False) -> str:
    """A UTF-8 file of up to `most` bytes; of a longer one the whole lines in these, if a `part` will do. Raises
    ModelError."""
    try:
        with path.open("rb") as stream:
            data = stream.read(most + 1)
        if len(data) > most and part:
            data = data[: data.rfind(b"\n") + 1] or data
        if len(data) > most:
            raise ModelError(f"{path}: has more than {most} bytes, which is the limit for such a file")
        return data.decode("utf-8")
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelError(f"{path}: not readable as UTF-8 text: {error}") from error


def parse_object(text: str) -> dict[str, Any]:
    """A JSON object in which no key is there twice: readers would differ on what it says. Raises ValueError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for key, value in pairs:
            if key in entries:
                raise ValueError(f"key {key!r} is there twice")
            entries[key] = value
        return entries

    try:
        data = json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError(f"holds a {type(data).__name__}, not an object with keys")
    return data


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelError."""
    text = read_text(path, MAX_JSON_BYTES)
    try:
        return parse_object(text)
    except ValueError as error:
        raise ModelError(f"{path}: not readable as JSON: {error}") from error
