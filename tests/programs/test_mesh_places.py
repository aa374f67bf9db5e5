"""Places of experts on the mesh: what has one is computed once, and what has none waits for a pass, or is dropped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generations import generated, goes_on_from_a_state, same_as_on_one_rank
from measure import meet
from moe_models import IDS, random_moe
from runs import run_program

import meshrt.models.reference as reference
import meshrt.programs.mesh.experts.prefill as prompt_side
import meshrt.programs.mesh.experts.regional as region_side
from meshrt.errors import UsageError
from meshrt.models.config import read_config
from meshrt.models.experts import route
from meshrt.models.reference import forward, load_weights

PROMPT, NEW = 11, 4
WAYS = ["ring", "multicast", "crossbar"]
# Meshes, regions, and what --capacity says: an expert's places lie on lcm(w, h) rows of tiles of a w x h region.
CUTS: list[tuple[str, tuple[int, int], str | None, int]] = [
    ("mixtral", (4, 4), "2x2", 1),  # 2 places
    ("mixtral", (3, 5), None, 2),  # no regions: 15 places, more than there are tokens
    ("qwen2-moe", (6, 3), "3x1", 1),  # regions of 2 x 3: 6 places, 3 regions for 7 experts
    ("deepseek", (4, 6), "2x3", 3),  # 4
    ("olmoe", (3, 3), "3x3", 2),  # regions of one core each, more than experts
    ("qwen3-moe", (2, 2), None, 3),  # 4
]


def places(mesh: tuple[int, int], grid: str | None, capacity: int) -> int:
    columns, rows = (1, 1) if grid is None else map(int, grid.split("x"))
    sides = int(np.lcm(mesh[0] // columns, mesh[1] // rows))
    return sides * -(-capacity // sides)


def options(grid: str | None, capacity: int, way: str, drop: bool) -> dict[str, Any]:
    where = {"experts": "split"} if grid is None else {"experts": "regions", "expert_grid": grid}
    return {**where, "capacity": capacity, "dispatch": way, "drop": drop}


def without(chosen: np.ndarray, count: int, length: int) -> np.ndarray:
    """Which of the choices [T, k] of a prompt's `length` tokens are over so many of an expert, in their order."""
    seen: Counter[int] = Counter()
    over = np.zeros(chosen.shape, bool)
    for token, experts in enumerate(chosen[:length]):
        for at, expert in enumerate(experts):
            over[token, at] = seen[int(expert)] >= count
            seen[int(expert)] += 1
    return over


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name, mesh, grid, capacity", CUTS, ids=str)
def test_what_is_dropped_is_what_the_reference_leaves_out(
    name: str, mesh: tuple[int, int], grid: str | None, capacity: int, way: str, tmp_path: Path, comm: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Logits against the reference in float64 with a share of 0 for what has no place; other shares stay."""
    model, room = random_moe(name, tmp_path / name), places(mesh, grid, capacity)
    report, logits, every = generated(
        comm, model, mesh, tmp_path, IDS[name][:PROMPT], NEW, dtype="float32", **options(grid, capacity, way, True)
    )
    dropped: list[int] = []

    def limited(logits: np.ndarray, top: int, renormalise: bool) -> tuple[np.ndarray, np.ndarray]:
        chosen, shares = route(logits, top, renormalise)
        over = without(chosen, room, PROMPT)
        dropped.append(int(over.sum()))
        return chosen, np.where(over, 0, shares)

    monkeypatch.setattr(reference, "route", limited)
    expected = forward(read_config(model), load_weights(model), every)
    assert np.abs(logits - expected).max() < 1e-3
    said, moe = report["result"]["experts"], read_config(model).moe
    assert moe is not None
    assert said["dropped"] == dropped and (any(dropped) or room >= PROMPT)
    assert max(said["passes"]) <= (-(-moe.experts // region_count(grid)))  # one for each round of regions
    # All choices are counted, dropped or not, and none of them in decode.
    assert {sum(row) for row in said["tokens"]} == {moe.top * (PROMPT + NEW - 1)}


def region_count(grid: str | None) -> int:
    return 1 if grid is None else int(np.prod([*map(int, grid.split("x"))]))


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name, mesh, grid, capacity", CUTS, ids=str)
def test_each_token_is_computed_once_by_each_of_its_experts_or_counted_as_dropped(
    name: str, mesh: tuple[int, int], grid: str | None, capacity: int, way: str, drop: bool, tmp_path: Path, comm: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By what lies at the experts' cores when they multiply: rows of rms(X), whose numbers no two tokens share."""
    prompts: list[tuple[np.ndarray, np.ndarray]] = []  # rms(X) [T, E] and the experts [T, k] of each layer
    computed: list[Counter[tuple[int, int]]] = []  # (token, expert), of each layer
    first = [0]  # expert of the round that is multiplying
    own_choose, own_pass, own_multiply = prompt_side.choose_for_prompt, region_side.one_pass, region_side.multiply

    def tokens_of(tiles: np.ndarray) -> np.ndarray:
        """[cores along y, along x, rows, columns, Lt, Et] -> [tokens, E], padding left out."""
        rows = tiles.transpose(0, 2, 4, 1, 3, 5)
        return rows.reshape(int(np.prod(rows.shape[:3])), -1)[:, :36].copy()

    def choose(region: Any, chunks: Any, w: Any, number: int, x: np.ndarray, length: int) -> Any:
        choice = own_choose(region, chunks, w, number, x, length)
        prompts.append((tokens_of(x)[:length], choice.experts.reshape(-1, w.top)[:length]))
        computed.append(Counter())
        return choice

    def one_pass(*given: Any) -> None:
        first[0] = given[6].start
        own_pass(*given)

    def multiply(block: Any, grid: Any, w: Any, x: np.ndarray, *more: Any) -> Any:
        for number, part in grid.parts(block.mesh):
            rows = tokens_of(x[part.rows, part.columns])
            for row in rows[rows.any(axis=1)]:
                (token,) = np.flatnonzero((prompts[-1][0] == row).all(axis=1))
                computed[-1][int(token), first[0] + number] += 1
        return own_multiply(block, grid, w, x, *more)

    monkeypatch.setattr(prompt_side, "choose_for_prompt", choose)
    monkeypatch.setattr(region_side, "one_pass", one_pass)
    monkeypatch.setattr(region_side, "multiply", multiply)
    model, room = random_moe(name, tmp_path / name), places(mesh, grid, capacity)
    said = run_program(
        comm, "llama", mesh, model=str(model), prompt_ids=",".join(map(str, IDS[name][:PROMPT])), max_new_tokens=1,
        dtype="float32", **options(grid, capacity, way, drop),
    )["result"]["experts"]  # fmt: skip
    for (_, experts), done, dropped in zip(prompts, computed, said["dropped"], strict=True):
        over = without(experts, room, len(experts)) if drop else np.zeros(experts.shape, bool)
        wanted = {(token, int(experts[token, at])) for token, at in np.argwhere(~over)}
        assert done == Counter(wanted)
        assert dropped == over.sum()


@pytest.mark.mpi(ranks=[2, 3, 6])
@pytest.mark.sample(1)
@pytest.mark.parametrize("way", WAYS)
def test_several_ranks_drop_what_one_does(way: str, tmp_path: Path, comm: Any) -> None:
    model = Path(comm.bcast(str(tmp_path))) / "model"
    if comm.rank == 0:
        random_moe("qwen2-moe", model)
    meet(comm)
    report, _ = same_as_on_one_rank(
        comm, model, (6, 4), model.parent, prompt_ids="5,6,7,60,2,1", max_new_tokens=2, layers=1,
        **options("3x2", 1, way, True),
    )  # fmt: skip
    assert any(report["result"]["experts"]["dropped"])


@pytest.mark.mpi(ranks=[1, 2])
def test_what_was_dropped_is_known_to_a_generation_that_goes_on(tmp_path: Path, comm: Any) -> None:
    model = Path(comm.bcast(str(tmp_path))) / "model"
    if comm.rank == 0:
        random_moe("qwen2-moe", model)
    meet(comm)
    goes_on_from_a_state(comm, model, model.parent, 4, layers=1, **options("4x4", 1, "ring", True))


@pytest.mark.mpi(ranks=[1])
def test_one_pass_takes_fewer_cycles_and_moves_fewer_bytes(comm: Any) -> None:
    """By shape, of experts that are chosen unevenly; dropped is what is over 8 places, counted from the tokens."""
    common: dict[str, Any] = {
        "model": "mixtral-tiny", "prompt_tokens": 64, "max_new_tokens": 1, "layers": 1, "routing": "zipf:1.5",
        "experts": "regions", "expert_grid": "2x2", "capacity": 8,
    }  # fmt: skip
    every, dropping = (
        run_program(comm, "llama", (8, 8), "wse2", {"core_memory": 10**6}, payload=False, drop=drop, **common)
        for drop in (False, True)
    )
    tokens = np.array(every["result"]["experts"]["tokens"][0])
    assert dropping["result"]["experts"]["tokens"] == every["result"]["experts"]["tokens"]
    assert dropping["result"]["experts"]["dropped"] == [int(np.maximum(tokens - 8, 0).sum())]
    assert every["result"]["experts"]["dropped"] == [0]
    assert dropping["result"]["experts"]["passes"] == [2]  # 8 experts in 4 regions
    assert every["result"]["experts"]["passes"] == [sum(-(-int(tokens[at : at + 4].max()) // 8) for at in (0, 4))]
    for key in ("messages", "macs"):
        assert dropping["measured"][key] < every["measured"][key]
    assert dropping["measured"]["critical_path"]["cycles"] < every["measured"]["critical_path"]["cycles"]
    filled = [
        int(np.minimum(tokens, 8).sum()) / 64,
        int(tokens.sum()) / (sum(every["result"]["experts"]["passes"]) * 32),
    ]
    assert [report["result"]["experts"]["filled"] for report in (dropping, every)] == filled


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    "given, words",
    [
        ({}, "--drop is for tokens that move: --dispatch padded"),
        ({"dispatch": "dense"}, "--drop is for tokens that move: --dispatch dense"),
        ({"model": "llama-tiny"}, "--drop is for models with experts"),
    ],
    ids=str,
)
def test_where_all_have_room_nothing_is_dropped(given: dict[str, Any], words: str, comm: Any) -> None:
    with pytest.raises(UsageError, match=words):
        run_program(comm, "llama", (4, 4), **({"model": "mixtral-tiny", "prompt_ids": "1,2", "drop": True} | given))
