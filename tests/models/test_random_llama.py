"""A folder of random weights: all tensors of its configuration, the same numbers twice."""

from pathlib import Path

import numpy as np
import pytest

from meshrt.models import random_llama
from meshrt.models.config import read_config
from meshrt.models.folders.checkpoint import check_shapes, open_checkpoint

SIZES = ["--hidden", "40", "--inner", "56", "--layers", "2", "--heads", "4", "--kv-heads", "2", "--vocabulary", "67"]


def test_it_has_all_tensors_and_the_same_numbers_twice(tmp_path: Path) -> None:
    for name in ("one", "two"):
        random_llama.main([str(tmp_path / name), *SIZES])
    config = read_config(tmp_path / "one")
    check_shapes(open_checkpoint(tmp_path / "one"), config)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert first == second
    assert np.isfinite(open_checkpoint(tmp_path / "one").view("model.embed_tokens.weight").astype(np.float32)).all()


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        random_llama.main([str(tmp_path), *SIZES])
