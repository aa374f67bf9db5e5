"""Models that others brought to the local cache of the Hugging Face hub, found by their names. Nothing is fetched.

A model `org/name` is in `models--org--name` of the cache; its `refs/main` has the name of a folder in `snapshots`,
whose files are links into `blobs` (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
"""

import os
import re
from pathlib import Path

PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
COMMIT_BYTES = 100  # of refs/main: more than any name of a snapshot


def is_hub_name(name: str) -> bool:
    """Can it be a name there, such as Qwen/Qwen3-4B?"""
    return re.fullmatch(f"{PART}/{PART}", name) is not None


def cache_folder() -> Path:
    """Where the cache is, as huggingface_hub finds it."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(os.path.expanduser(cache))
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(os.environ.get("HF_HOME") or os.path.join(base, "huggingface"))) / "hub"


def cached(name: str) -> Path | None:
    """The newest snapshot of a model in the cache, if it is there with its config.json. Old names have no `org/`."""
    if not is_hub_name(name) and re.fullmatch(PART, name) is None:
        return None
    home = cache_folder() / ("models--" + name.replace("/", "--"))
    try:
        with (home / "refs" / "main").open("rb") as stream:
            commit = stream.read(COMMIT_BYTES).decode("utf-8").strip()
    except (OSError, ValueError):
        return None
    folder = home / "snapshots" / commit
    return folder if re.fullmatch(PART, commit) and os.path.isfile(folder / "config.json") else None
