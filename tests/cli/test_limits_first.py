"""What a device refuses is refused before anything large is made: numbers, weights, room for a cache.

Each process has half a gigabyte of the host's memory. To make first and ask then would end with exit code 2 for want of
that memory, or take many seconds.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from gpu_runs import new_gpus, run_lowrank
from lines import run_lines
from mpi_jobs import run_ranks
from runs import run_program

from meshrt.errors import LimitError
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.programs.gemm import random_matrices

CORE = r"core (0, 0): {} asks for {} bytes, {} are in use, the limit is 49152 (device wse2); use a larger --mesh"
REFUSED = {
    "gemm --m 10000000": CORE.format("'A'", 160000000, 0),
    "gemm --m 10000000 --payload none": CORE.format("'A'", 160000000, 0),
    "gemm --n 10000000 --dtype bfloat16": CORE.format("'B'", 80000000, 2048),
    "gemm --n 10000000 --transpose-b": CORE.format("'B'", 160000000, 4096),
    "gemv --k 10000000": CORE.format("'B'", 160000000, 0),
    "gemv --n 10000000 --axis x": CORE.format("'B'", 160000000, 0),
    "gemv --n 10000000 --payload none": CORE.format("'B'", 160000000, 0),
    "kvcache --head-dim 1000000000": CORE.format("'KV cache'", 8000000000, 0),
    "kvcache --layers 1000000000 --until-full": CORE.format("'KV cache'", 128000000000, 0),
    "kvcache --reserved 1000000000": CORE.format("'reserved'", 1000000000, 0),
    "allreduce --size 1000000000": CORE.format("'vector'", 4000000000, 0),
    "shift --tile 30000": CORE.format("'tile along x'", 3600000000, 0),
    "xuv --m 10000000 --k 10000": "HBM of NeuronCore 0 is full: 200000000000 bytes asked for, 0 in use, the limit is",
    "xuv --m 20000 --k 20000 --n 60000 --block-n 60000": "asks for 240000 bytes of a partition, which has 196608: cut",
    "linear --k 1000000000 --n 1000": "DRAM: 'weights' asks for 562500000000 bytes, 0 are in use, the limit is",
    "linear --m 10000000 --k 1000": "DRAM: 'x' asks for 40000000000 bytes, 72192 are in use, the limit is",
    "lowrank --dtype float32 --gpu-memory 3000000": "'weights' asks for 196608 bytes, 2824512 are in use",
}


ON_TWO_RANKS = [line for line in REFUSED if line.startswith("gem")]  # of the others one rank tells enough
LIMITED = ["sh", "-c", 'ulimit -d 500000; exec "$0" "$@"']


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """What the command lines end with, one after the other in the half gigabyte of one process."""
    return run_lines({line: ["run", *line.split()] for line in REFUSED}, tmp_path_factory.mktemp("lines"), LIMITED)


@pytest.mark.parametrize("line", REFUSED)
def test_what_does_not_fit_is_refused_before_it_is_made(line: str, outcomes: dict[str, tuple[int, str, str]]) -> None:
    code, out, err = outcomes[line]
    assert (code, out, err.count("\n")) == (3, "", 1), err
    assert err.startswith("meshrt: error") and REFUSED[line] in err


@pytest.mark.sample(2)
@pytest.mark.parametrize("line", ON_TWO_RANKS)
def test_so_it_is_on_two_ranks(line: str) -> None:
    finished = run_ranks([*LIMITED, sys.executable, "-m", "meshrt.cli", "run", *line.split()], 2)
    assert finished.code == 3, finished.stderr
    assert finished.stderr.count("meshrt: error") == 1
    assert REFUSED[line] in finished.stderr


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("program", ["llama", "lowrank"])
def test_no_weight_is_read_where_not_all_fit(program: str, comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last of them would fit."""

    def read(*args: object) -> None:
        raise AssertionError("a weight is read")

    monkeypatch.setattr(Checkpoint, "read", read)
    with pytest.raises(LimitError, match="asks for"):
        if program == "llama":
            run_program(comm, "llama", (8, 8), "wse2", {"core_memory": 27000})
        else:
            run_lowrank(new_gpus(1, memory_bytes=3_000_000), "llama-tiny", prompt_ids="1,2,3", dtype="float32")


def test_the_second_matrix_has_its_numbers_whichever_is_asked_for_first() -> None:
    for dtype in ("float32", "bfloat16"):
        a, b = (draw() for draw in random_matrices(7, (5, 3), (3, 4), dtype))
        first, second = random_matrices(7, (5, 3), (3, 4), dtype)
        assert (second() == b).all() and (first() == a).all() and (second() == b).all()
