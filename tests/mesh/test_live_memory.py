"""What is charged is never less than what lives, in any program of the mesh (tests/live_memory.py)."""

from typing import Any

import numpy as np
import pytest
from live_memory import watching
from runs import run_program

from meshrt.mesh.memory import CoreMemory

SIZES: dict[str, Any] = {"m": 22, "k": 34, "n": 27}
IDS: dict[str, Any] = {
    "model": "llama-tiny",
    "prompt_ids": "5,6,7,8,9,10,11",
    "ignore_eos": True,
    "max_new_tokens": 3,
    "layers": 1,
}
TWO = IDS | {"layers": 2}  # for what one layer leaves to the next, or another region
RUNS: dict[str, tuple[str, tuple[int, int], dict[str, Any]]] = {
    **{f"gemm {name}": ("gemm", (4, 4), SIZES | {"algorithm": name}) for name in ("cannon", "summa", "allgather")},
    "gemm meshgemm": ("gemm", (5, 5), SIZES),
    "gemm 16 bit": ("gemm", (4, 4), SIZES | {"dtype": "bfloat16"}),
    "gemm 3x2": ("gemm", (3, 2), SIZES),
    "gemm summa 3x2": ("gemm", (3, 2), SIZES | {"algorithm": "summa", "segment": 1}),
    "gemm allgather 3x2": ("gemm", (3, 2), SIZES | {"algorithm": "allgather", "segment": 1}),
    "gemm transposed": ("gemm", (4, 4), SIZES | {"transpose_b": True}),
    "gemm transposed 3x2": ("gemm", (3, 2), SIZES | {"transpose_b": True}),
    "gemm transposed ktree": ("gemm", (4, 6), SIZES | {"transpose_b": True, "reduce": "ktree"}),
    **{
        f"gemv {name} {axis}": ("gemv", (5, 4), {"k": 30, "n": 17, "allreduce": name, "axis": axis})
        for name in ("ktree", "pipeline", "ring")
        for axis in "xy"
    },
    **{
        f"allreduce {name}": ("allreduce", (6, 5), {"size": 13, "algorithm": name, "times": 2})
        for name in ("ktree", "pipeline", "ring")
    },
    "kvcache shift": ("kvcache", (3, 4), {}),  # the other policies move nothing
    "shift": ("shift", (6, 5), {"axis": "both", "tile": 7, "multiply": True}),
    "shift cannon": ("shift", (6, 5), {"pattern": "cannon", "axis": "both", "tile": 7}),
    "llama": ("llama", (8, 8), IDS),
    "llama 3x2": ("llama", (3, 2), TWO),
    "llama head groups": ("llama", (4, 4), IDS | {"head_groups": 2}),
    "llama ten allreduces": ("llama", (4, 4), IDS | {"allreduces": "published"}),
    "llama concat": ("llama", (4, 4), IDS | {"kv": "concat"}),
    "llama t10": ("llama", (4, 4), IDS | {"system": "t10"}),
    "llama t10 3x2": ("llama", (3, 2), IDS | {"system": "t10"}),
    "llama t10 inferred 3x2": ("llama", (3, 2), IDS | {"system": "t10-inferred"}),
    "llama ladder inferred 3x2": ("llama", (3, 2), IDS | {"system": "ladder-inferred"}),
    "llama ladder": ("llama", (4, 4), IDS | {"system": "ladder"}),
    "llama ladder 3x2": ("llama", (3, 2), IDS | {"system": "ladder"}),
    "llama regions": ("llama", (4, 4), TWO | {"regions": 2}),
    "llama other cores": ("llama", (5, 5), TWO | {"decode_mesh": "4x4", "decode_regions": 2}),
    "llama more cores": ("llama", (4, 2), IDS | {"decode_mesh": "6x3"}),
}


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(9)
@pytest.mark.parametrize("name", RUNS)
def test_all_that_lives_is_charged(name: str, comm):
    program, mesh, options = RUNS[name]
    with watching() as watch:
        run_program(comm, program, mesh, **options)
    assert watch.looks >= 4 and watch.seen > watch.looks


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("name", ["gemm meshgemm", "gemv ktree x", "llama", "llama ladder"])
def test_what_is_not_charged_is_found(name: str, comm, monkeypatch):
    program, mesh, options = RUNS[name]

    def forgets(memory: CoreMemory, name: str, array: np.ndarray) -> np.ndarray:
        return array if name in ("product", "tile loaded", "C") else keep(memory, name, array)

    keep = CoreMemory.keep
    monkeypatch.setattr(CoreMemory, "keep", forgets)
    with watching(), pytest.raises(AssertionError, match="not charged"):
        run_program(comm, program, mesh, **options)
