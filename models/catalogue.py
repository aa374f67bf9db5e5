"""The models that come with meshrt, and how a name on the command line becomes a folder."""

import os
from pathlib import Path

from meshrt.models import hub
from meshrt.models.errors import ModelError

CONFIG = "config.json"


def packaged() -> list[str]:
    """Names of the packaged models: the folders beside this file that hold a config.json."""
    return sorted(path.parent.name for path in _here().glob(f"*/{CONFIG}"))


def is_packaged(name: str) -> bool:
    """Is it one of those names? Found without a look at the others."""
    return name in os.listdir(_here()) and os.path.isfile(_here() / name / CONFIG)


def has_weights(name: str) -> bool:
    """Does a packaged model come with weights, or as a configuration alone?"""
    return any((_here() / name).glob("*.safetensors"))


def has_experts(name: str) -> bool:
    """Is a packaged model a mixture of experts?"""
    from meshrt.models.config import read_config

    return read_config(_here() / name).moe is not None


def find_model(name: str | Path) -> Path:
    """The folder of a packaged model's name, of a path, or of a name that the local Hugging Face cache has.

    A packaged name wins, then a path; `./name` is always a path. Raises ModelError with the way to what is elsewhere,
    or listing the packaged models.
    """
    if is_packaged(str(name)):
        return _here() / str(name)
    folder = Path(os.path.expanduser(name))
    if os.path.isfile(folder / CONFIG):
        return folder
    if cached := hub.cached(str(name)):
        return cached
    if folder.suffix == ".gguf" and not os.path.exists(folder):
        raise ModelError(f"model {str(name)!r}: there is no such file; `meshrt import` makes a folder of a GGUF file")
    if folder.suffix == ".gguf" and os.path.isfile(folder):
        raise ModelError(
            f"model {str(name)!r} is a GGUF file: `meshrt import {name} --out FOLDER` makes a folder of it, which"
            " --model takes"
        )
    if hub.is_hub_name(str(name)) and not os.path.exists(folder):
        raise ModelError(
            f"model {str(name)!r} is neither a folder nor in the Hugging Face cache, {hub.cache_folder()}, and nothing"
            f" is fetched from here: `hf download {name}` brings a model of this name there"
        )
    from difflib import get_close_matches  # for those who mistype

    problem = "has no config.json" if os.path.isdir(folder) else "is neither a packaged model nor a folder"
    near = get_close_matches(str(name), packaged(), 1)
    meant = f"did you mean {near[0]}? " if near else ""
    listed = ", ".join(packaged()) or "none"
    raise ModelError(f"model {str(name)!r} {problem}; {meant}packaged: {listed}; else give a Hugging Face folder")


def runner(name: str) -> str:
    """The program that runs a packaged model."""
    from meshrt.models.config import read_config

    return "lowrank" if read_config(find_model(name)).model_type == "opt" else "llama"


def _here() -> Path:
    return Path(__file__).resolve().parent
