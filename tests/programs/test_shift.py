"""The programs that only move tiles: every tile is where it belongs, every sum is right, and each hop is counted."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from measure import end, numbered, on_one_rank, own, run_report
from runs import new_block

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import Pattern, allreduce, pattern
from meshrt.mesh.device import Device

SLOW = Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=3.0, macs_per_cycle=2.0, call_cycles=11.0)


def without_host(report: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in report.items() if key != "host"}


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("pattern", ["interleaved", "cannon"])
@pytest.mark.parametrize("axis", ["x", "y", "both"])
@pytest.mark.parametrize("steps", [1, 6, 13])
def test_a_shift_moves_every_tile_as_far_as_it_says(pattern: str, axis: str, steps: int, comm):
    options = {"pattern": pattern, "axis": axis, "tile": 3, "steps": steps}
    report = run_report(comm, "shift", (7, 5), SLOW, **options)
    assert report["result"] == {"steps": steps, "in_place": True}
    lengths = {"x": [7], "y": [5], "both": [7, 5]}[axis]
    counted = report["measured"]
    assert counted["messages"] == steps * 7 * 5 * len(lengths)
    # Round either ring all tiles of a line of N cores go 2 (N - 1) hops in all; the other axis has 35 / N lines.
    assert counted["hops"] == steps * sum(2 * (n - 1) * (35 // n) for n in lengths)
    assert counted["max_hops"] == (2 if pattern == "interleaved" else max(lengths) - 1)
    assert without_host(report) == on_one_rank(
        comm, lambda single: without_host(run_report(single, "shift", (7, 5), SLOW, **options))
    )


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("pattern", ["interleaved", "cannon"])
def test_the_products_of_the_tiles_that_meet_are_added_up(pattern: str, comm):
    options = {"pattern": pattern, "axis": "both", "multiply": True, "tile": 4, "steps": 9}
    full, none = (run_report(comm, "shift", (6, 4), SLOW, payload, **options) for payload in (True, False))
    assert full["result"]["in_place"] and full["result"]["max_rel_error"] < 1e-6
    assert full["measured"]["macs"] == 9 * 24 * 4**3
    assert none["measured"] == full["measured"]


@pytest.mark.mpi(ranks=[1])
def test_one_core_keeps_its_tile(comm):
    report = run_report(comm, "shift", (1, 1), axis="both", tile=2, steps=3)
    assert report["result"]["in_place"] and report["measured"]["messages"] == 0


@pytest.mark.mpi(ranks=[1, 3])
def test_a_product_that_one_core_lacks_is_no_small_error(comm, monkeypatch: pytest.MonkeyPatch):
    real = Block.matmul

    def forgetful(block: Block, *operands: np.ndarray) -> np.ndarray:
        c = real(block, *operands)
        c[-1, -1] = np.nan if block.mesh.rank == comm.size - 1 else c[-1, -1]
        return c

    monkeypatch.setattr(Block, "matmul", forgetful)
    result = run_report(comm, "shift", (6, 6), axis="both", tile=3, steps=2, multiply=True)["result"]
    assert np.isnan([value for name, value in result.items() if "error" in name]).all()


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("options", "words"),
    [({"multiply": True}, "--axis both"), ({"tile": 0}, "--tile is 0"), ({"steps": 0}, "--steps is 0")],
)
def test_what_a_shift_refuses(options: dict[str, Any], words: str, comm):
    with pytest.raises(UsageError, match=words):
        run_report(comm, "shift", (2, 2), **options)


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("algorithm", ["ktree", "pipeline", "ring"])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_an_allreduce_gives_every_core_the_sum(algorithm: str, axis: str, comm):
    options = {"algorithm": algorithm, "axis": axis, "size": 23, "times": 2}
    full, none = (run_report(comm, "allreduce", (6, 4), SLOW, payload, **options) for payload in (True, False))
    assert full["result"]["max_rel_error"] < 1e-6
    assert none["measured"] == full["measured"]
    n, lines = (6, 4) if axis == "x" else (4, 6)
    steps = n - 1
    each = 2 * steps * n if algorithm == "ring" else steps + 1  # of a line: chunks; or partial sums, and one multicast
    assert full["measured"]["messages"] == 2 * lines * each
    with pytest.raises(UsageError, match="--times is 0"):
        run_report(comm, "allreduce", (6, 4), **(options | {"times": 0}))
    if algorithm != "ktree":
        with pytest.raises(UsageError, match="--phases 3 is a number of the K-tree"):
            run_report(comm, "allreduce", (6, 4), **(options | {"phases": 3}))


@pytest.mark.mpi(ranks=[1, 3])
def test_a_sum_that_one_core_lacks_is_no_small_error(comm, monkeypatch: pytest.MonkeyPatch):
    """Memory that nothing has written is NaN, on whichever rank."""

    def forgetful(block: Block, way: Pattern, tiles: np.ndarray, out: np.ndarray) -> None:
        allreduce(block, way, tiles, out=out)
        if block.mesh.rank == comm.size - 1:
            out[-1, -1, -1] = np.nan

    monkeypatch.setattr("meshrt.programs.allreduce.allreduce", forgetful)
    assert np.isnan(run_report(comm, "allreduce", (6, 4), size=5)["result"]["max_rel_error"])


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("kind", ["ktree", "pipeline", "ring"])
@pytest.mark.parametrize("size", [5, 12])
def test_an_allreduce_writes_where_it_is_told_to_and_nowhere_else(
    kind: Literal["ktree", "pipeline", "ring"], size: int, comm
):
    block = new_block(comm, (4, 3))
    whole = numbered(4, 3, size)
    tiles = own(block, whole)
    out, scattered = np.full_like(tiles, np.nan), np.full((*tiles.shape, 2), np.nan, np.float32)[..., 0]
    right = np.broadcast_to(own(block, whole.sum(axis=1, keepdims=True) + np.zeros_like(whole)), tiles.shape)
    with pattern(block, kind, "x") as way:
        assert (allreduce(block, way, tiles) == right).all()
        assert allreduce(block, way, tiles, out=out) is out
        allreduce(block, way, tiles, out=scattered)
        assert (tiles == own(block, whole)).all()
        allreduce(block, way, tiles, out=tiles)
    assert all((sums == right).all() for sums in (out, scattered, tiles))
    end(block)
