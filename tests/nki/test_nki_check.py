"""`meshrt nki check` on a folder of kernels of its own: what it finds, and how each state is told."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import meshrt.studies.nki.cases  # noqa: F401 - registers them
from meshrt.errors import UsageError
from meshrt.studies.nki.case import find_case, worst
from meshrt.studies.nki.check import check, lines
from meshrt.studies.nki.find import find_kernels

KERNEL = """
import torch
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

@nki.jit
def nki_softmax_kernel(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range((a.shape[0] + 127) // 128):
        p, f = nl.arange(128)[:, None], nl.arange(a.shape[1])[None, :]
        inside = i * 128 + p < a.shape[0]
        tile = nl.load(a[i * 128 + p, f], mask=inside)
        nl.store(out[i * 128 + p, f], nl.softmax(tile, axis=1){WRONG}, mask=inside)
    return out
"""


def test_each_state_of_a_kernel(tmp_path: Path) -> None:
    for name, text in {
        "right/softmax_nki_kernels.py": KERNEL.replace("{WRONG}", ""),
        "wrong/softmax_nki_kernels.py": KERNEL.replace("{WRONG}", " + 1"),
        "broken.py": "import nki\ndef (",
        "unknown.py": "import neuronxcc.nki as nki\n@nki.jit\ndef mine(a): return a\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    outcomes = {outcome.path.split(os.sep)[0]: outcome for outcome in check(tmp_path)}
    states = {name: (outcome.parses, outcome.runs, outcome.right) for name, outcome in outcomes.items()}
    assert states == {
        "broken.py": (False, False, False), "right": (True, True, True), "unknown.py": (True, False, False),
        "wrong": (True, True, False),
    }  # fmt: skip
    assert "differs from NumPy" in outcomes["wrong"].reason and outcomes["right"].details["api"] == "old"
    assert list(lines(outcomes.values()))[-1] == "1 of 4 kernels are right, 25 %"


def test_a_folder_without_kernels(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no kernels"):
        find_kernels(tmp_path)
    with pytest.raises(UsageError, match="is no folder"):
        find_kernels(tmp_path / "absent")
    (tmp_path / "mine.py").write_text("import nki\n@nki.jit\ndef mine(a): return a\n")
    with pytest.raises(UsageError, match=r"--only yours: none of the 1 kernels .* such as mine.py:mine"):
        list(check(tmp_path, "yours"))


def test_a_difference_is_a_share_of_the_largest_number() -> None:
    assert worst([(np.array([1.0, 2.0]), np.array([1.0, 4.0]))]) == 0.5
    assert worst([(np.array([np.nan]), np.array([1.0]))]) == float("inf")
    assert worst([(np.zeros(3), np.zeros(2))]) == float("inf")


def test_a_kernel_is_tried_as_its_own_file_has_it() -> None:
    """Two repositories have a product of this name; that of nki-samples takes larger ones."""
    name = "nki_matmul_fully_optimized_"
    own, other = find_case("x/matrix_multiplication_nki_kernels.py", name), find_case("x/test_speedup.py", name)
    assert own is not None and other is not None
    assert (own.path, other.path) == ("matrix_multiplication_nki_kernels.py", "")
