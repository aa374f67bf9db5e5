"""The models that come with meshrt, and how a name on the command line becomes a folder."""

import os
from pathlib import Path

from meshrt.models.errors import ModelError


def packaged() -> list[str]:
    """Names of the packaged models: the folders beside this file that hold a config.json."""
    return sorted(path.parent.name for path in _here().glob("*/config.json"))


def has_weights(name: str) -> bool:
    """Does a packaged model come with weights, or as a configuration alone?"""
    return any((_here() / name).glob("*.safetensors"))


def has_experts(name: str) -> bool:
    """Is a packaged model a mixture of experts?"""
    from meshrt.models.config import read_config
    from meshrt.models.opt import is_opt

    folder = _here() / name
    return not is_opt(folder) and read_config(folder).moe is not None


def find_model(name: str | Path) -> Path:
    """The folder of a packaged model's name, or of a path. A packaged name wins; `./name` is always a path.

    Raises ModelError listing the packaged models.
    """
    if str(name) in packaged():
        return _here() / str(name)
    folder = Path(os.path.expanduser(name))
    if os.path.isfile(folder / "config.json"):
        return folder
    problem = "has no config.json" if os.path.isdir(folder) else "is neither a packaged model nor a folder"
    listed = ", ".join(packaged()) or "none"
    raise ModelError(f"model {str(name)!r} {problem}; packaged: {listed}; else give a Hugging Face folder")


def runner(name: str) -> str:
    """The program that runs a packaged model."""
    from meshrt.models.opt import is_opt

    return "lowrank" if is_opt(find_model(name)) else "llama"


def _here() -> Path:
    return Path(__file__).resolve().parent
