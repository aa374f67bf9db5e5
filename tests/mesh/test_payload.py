"""`--payload none`: shapes instead of numbers, with the same messages, counts and cycles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measure import measured, numbered, own, run_report
from runs import new_block

from meshrt.mesh.collectives.broadcast import spreads, start_allgather
from meshrt.mesh.device import Device
from meshrt.mesh.wires import receiving

SLOW = Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=3.0, macs_per_cycle=2.0, call_cycles=11.0)
LLAMA = {"prompt_ids": "12,7,300,45,9", "max_new_tokens": 4, "ignore_eos": True}
CASES: dict[str, tuple[str, tuple[int, int], dict[str, Any]]] = {
    "gemm": ("gemm", (5, 5), {"m": 11, "k": 40, "n": 9}),
    "gemm, several tiles a core": ("gemm", (6, 4), {"m": 11, "k": 40, "n": 9}),
    "gemm transposed": ("gemm", (4, 4), {"m": 11, "k": 40, "n": 9, "transpose_b": True}),
    "gemm transposed, several tiles a core": ("gemm", (4, 6), {"m": 11, "k": 40, "n": 9, "transpose_b": True}),
    "gemm on one core": ("gemm", (1, 1), {"m": 3, "k": 4, "n": 5}),
    "gemv along y": ("gemv", (7, 5), {"k": 100, "n": 41}),
    "gemv along x": ("gemv", (7, 5), {"k": 100, "n": 41, "axis": "x", "phases": 3}),
    "kvcache": ("kvcache", (4, 5), {"tokens": 23}),
    "llama": ("llama", (8, 8), LLAMA),
    "llama, several tiles a core": ("llama", (4, 6), LLAMA),
}


@pytest.mark.mpi(ranks=[1, 2, 6, 16])
@pytest.mark.sample(5)
@pytest.mark.parametrize("case", CASES)
def test_counts_and_cycles_are_the_same_without_payloads(case: str, comm):
    name, mesh, options = CASES[case]
    if mesh == (1, 1) and comm.size > 1:
        mesh = (comm.size, 1)
    full = run_report(comm, name, mesh, SLOW, **options)
    none = run_report(comm, name, mesh, SLOW, payload=False, **options)
    assert none["measured"] == full["measured"]
    assert none["phases"] == full["phases"]
    for key in ("messages", "packets"):
        assert none["host"][key] == full["host"][key]
    # What is left of a message is its packets' headers of three float64.
    assert none["host"]["bytes"] == 24 * none["host"]["packets"]


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("longest", [None, 3, 1])
def test_allgather_counts_the_same_without_payloads(longest: int | None, comm):
    reports = []
    for payload in (True, False):
        block = new_block(comm, (7, 5), payload=payload)
        tiles = own(block, numbered(7, 5, 6)) if payload else np.empty((1, 1, 6), np.float32)
        with spreads(block, longest) as (along_x, _):
            receiving.receive(block, start_allgather(block, along_x, tiles))
        reports.append(measured(block))
        del reports[-1]["host"]
    assert reports[0] == reports[1]


@pytest.mark.mpi(ranks=[1])
def test_a_block_without_payloads_keeps_one_tile_for_all_cores(comm):
    block = new_block(comm, (700, 700), payload=False)
    tiles = block.tiles("A", (1024, 8), "float32")
    assert tiles.nbytes == 1024 * 8 * 4
    assert block.memory.peak == 1024 * 8 * 4
    assert block.matmul(tiles, tiles.swapaxes(-1, -2)).shape == (1, 1, 1024, 1024)
    assert measured(block)["macs"] == 700 * 700 * 1024 * 1024 * 8
