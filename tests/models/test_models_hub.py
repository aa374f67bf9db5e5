"""Models by their names: what the local Hugging Face cache has is found, and for all else the way is told."""

import os
from pathlib import Path

import numpy as np
import pytest
from family_models import random_family

from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.errors import ModelError
from meshrt.models.reference import load_weights

COMMIT = "0a1b2c3d"


def cache_of(cache: Path, name: str) -> Path:
    """A cache with that model, in the layout of huggingface_hub: links into blobs."""
    home = cache / ("models--" + name.replace("/", "--"))
    snapshot, blobs = home / "snapshots" / COMMIT, home / "blobs"
    random_family("qwen3", blobs)
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        os.symlink(os.path.relpath(file, snapshot), snapshot / file.name)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT)
    return snapshot


@pytest.mark.parametrize("name", ["some/Qwen3-tiny", "old-name"])
@pytest.mark.parametrize("where", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_a_model_in_the_cache_is_found_by_its_name(
    name: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(where, str(tmp_path))
    below = {"HF_HUB_CACHE": ".", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}
    snapshot = cache_of(tmp_path / below[where], name)
    assert find_model(name).samefile(snapshot)
    assert read_config(find_model(name)).model_type == "qwen3"
    assert all(np.isfinite(tensor).all() for tensor in load_weights(find_model(name)).values())


@pytest.mark.parametrize("main", ["../../../elsewhere", "", "\xff", "not-there", "x" * 5000])
def test_a_damaged_cache_leads_nowhere(main: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = cache_of(tmp_path, "some/model")
    (snapshot.parents[1] / "refs" / "main").write_bytes(main.encode("latin-1"))
    with pytest.raises(ModelError, match="hf download some/model"):
        find_model("some/model")


def test_the_way_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    for name, message in (
        ("tiny.gguf", r"is a GGUF file: `meshrt import tiny.gguf --out FOLDER`"),
        ("Qwen/Qwen3-4B", r"in the Hugging Face cache, .*cache, .*`hf download Qwen/Qwen3-4B`"),
        ("absent.gguf", "there is no such file; `meshrt import` makes a folder of a GGUF file"),
        ("../outside", "packaged: "),
        ("a/b/c", "packaged: "),
    ):
        with pytest.raises(ModelError, match=message) as caught:
            find_model(name)
        assert caught.value.exit_code == 2
