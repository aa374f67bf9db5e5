"""Pieces of tiles on their way along lines: each where it belongs, and as many hops as are worked out here."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import measured, on_first
from runs import new_block, run_program
from tiers import examples

from meshrt.programs.mesh.experts.dispatch import DispatchWay, PieceMoves, carry

N, LINES, PLACES = 6, 4, 3
WAYS = get_args(DispatchWay)


def check(comm: Any, way: DispatchWay, axis: str, moves: PieceMoves, room: int, payload: bool = True) -> dict[str, Any]:
    """Numbered pieces of two numbers on lines of N cores; what was measured."""
    block = new_block(comm, (N, LINES) if axis == "x" else (LINES, N), payload=payload)
    low = block.mesh.offset(axis)
    own = low + np.arange(block.lead[1 if axis == "x" else 0])
    pieces = (own[:, None] * PLACES + np.arange(PLACES))[..., None].repeat(2, axis=-1).astype(np.float32)
    tiles = np.broadcast_to(pieces[None] if axis == "x" else pieces[:, None], (*block.lead, PLACES, 2)).copy()
    carried = carry(block, way, axis, tiles, moves, room)
    right = np.zeros((N, room), np.float32)
    right[moves.to_core, moves.to_place] = moves.core * PLACES + moves.place
    if payload:
        right = right[own][..., None]
        assert (carried == (right[None] if axis == "x" else right[:, None])).all()
    return measured(block)


def shuffled(seed: int) -> PieceMoves:
    """Every piece to some core, and one in four to another as well."""
    rng = np.random.default_rng(seed)
    core, place = np.divmod(np.concatenate([np.arange(N * PLACES), rng.choice(N * PLACES, N * PLACES // 4)]), PLACES)
    to_core = rng.integers(0, N, len(core))
    return PieceMoves(
        core, place, to_core, np.array([int((to_core[:at] == to).sum()) for at, to in enumerate(to_core)])
    )


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize("way", WAYS)
def test_pieces_arrive_and_hops_are_as_on_paper(way: DispatchWay, axis: str, comm: Any) -> None:
    """On all lines. Ring: each of N - 1 shifts has 2 (N - 1) hops, there and back. Multicast: every tile reaches N - 1
    cores over as many links. Crossbar: every piece goes as far as its core is away, a hop and a stage at a time."""
    moves = shuffled(3)
    report = check(comm, way, axis, moves, 10)
    hops = {
        "ring": (N - 1) * 2 * (N - 1),
        "multicast": N * (N - 1),
        "crossbar": int(np.abs(moves.core - moves.to_core).sum()),
    }
    assert report["hops"] == LINES * hops[way]
    assert report["max_hops"] == {"ring": 2, "multicast": N - 1, "crossbar": 1}[way]
    assert report["messages"] == LINES * {"ring": N * (N - 1), "multicast": N, "crossbar": hops["crossbar"]}[way]
    shapes = check(comm, way, axis, moves, 10, payload=False)
    report.pop("host"), shapes.pop("host")
    assert report == shapes


NUMBERS = st.integers(0, N * PLACES - 1)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, unique_by=lambda pair: pair[1])  # from a place, to another


def moves_of(pairs: list[tuple[int, int]]) -> PieceMoves:
    before, after = np.array(pairs).T
    return PieceMoves(before // PLACES, before % PLACES, after // PLACES, after % PLACES)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("way", WAYS)
def test_any_pieces_go_anywhere(way: DispatchWay, comm: Any) -> None:
    @settings(max_examples=examples(8), deadline=None, database=None)
    @given(PAIRS)
    def any_pieces(pairs: list[tuple[int, int]]) -> None:
        check(comm, way, "y", moves_of(pairs), PLACES)

    any_pieces()


@pytest.mark.mpi(ranks=[4])
def test_so_they_do_on_any_number_of_ranks(comm: Any) -> None:
    @settings(max_examples=examples(30))
    @given(st.sampled_from([2, 3, 4]), st.sampled_from(WAYS), st.sampled_from(["x", "y"]), PAIRS)
    def any_pieces(ranks: int, way: DispatchWay, axis: str, pairs: list[tuple[int, int]]) -> None:
        on_first(comm, ranks, lambda part: check(part, way, axis, moves_of(pairs), PLACES))

    any_pieces()


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("way", WAYS)
def test_tokens_come_to_their_experts_and_home(way: DispatchWay, comm: Any) -> None:
    report = run_program(comm, "dispatch", (4, 8), dispatch=way, tokens=5, experts=5, top=3, routing="zipf:1")
    if report is not None:
        assert report["result"]["in_place"] and report["result"]["fullest"] > report["result"]["mean"]


@pytest.mark.mpi(ranks=[1])
def test_few_routes_make_a_multicast_stop_on_its_way(comm: Any) -> None:
    """With 24 entries a line of 32 is cut into segments: shorter packets, and software that passes them on."""
    common = {"tokens": 1, "payload": False, "dispatch": "multicast"}
    free, bound = (run_program(comm, "dispatch", (1, 32), device, **common)["measured"] for device in ("ideal", "wse2"))
    assert free["max_hops"] == 31 and free["stages"] == 0
    assert bound["max_hops"] < 31 and bound["stages"] > 0 and bound["route_entries"]["max"] <= 24
