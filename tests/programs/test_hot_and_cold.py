"""Hot and cold links and pairs of rows on the way to experts: against loops over the tokens and what they chose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measure import on_one_rank, run_report
from moe_models import IDS, random_moe
from runs import run_program

import meshrt.programs.mesh.experts.prefill as prompt_side
import meshrt.programs.mesh.experts.regional as region_side
from meshrt.mesh.mesh import NORTH, PORT_NAMES, SOUTH
from meshrt.programs.mesh.experts.gate import choose_for_prompt

REGIONS = {"experts": "regions", "expert_grid": "2x2"}


def by_hand(experts: np.ndarray, mesh: tuple[int, int], grid: tuple[int, int], capacity: int) -> np.ndarray:
    """Tokens that go from each row of cores to each, int [H, H]: an expert's take its places in order, pass after pass,
    and these lie on the rows of its region from the north.
    """
    (width, height), (columns, rows) = mesh, grid
    sides = np.lcm(width // columns, height // rows)
    each, moved = -(-capacity // sides), np.zeros((height, height), np.int64)
    tile_rows, at_home = sides // (height // rows), -(-len(experts) // height)
    for number in range(experts.max() + 1):
        row = number % (columns * rows) // columns
        for at, token in enumerate(np.flatnonzero((experts == number).any(axis=1))):
            to = row * (height // rows) + at % (sides * each) // each // tile_rows
            moved[token // at_home, to] += 1
    return moved


def run(
    name: str, folder: Path, comm: Any, patch: pytest.MonkeyPatch, **options: Any
) -> tuple[Any, list[Any], list[Any]]:
    """The report, what the tokens of each layer chose, and what was counted of each."""
    seen: list[np.ndarray] = []
    heats: list[Any] = []

    def choose(region: Any, chunks: Any, w: Any, number: int, normed: np.ndarray, length: int) -> Any:
        choice = choose_for_prompt(region, chunks, w, number, normed, length)
        seen.append(choice.experts.reshape(-1, w.top))
        return choice

    def told_and_kept(block: Any, heat: Any) -> Any:
        heats.append(heat)
        return own(block, heat)

    own = region_side.told
    patch.setattr(prompt_side, "choose_for_prompt", choose)
    patch.setattr(region_side, "told", told_and_kept)
    report = run_program(
        comm, "llama", (4, 4), model=str(random_moe(name, folder / "m")), prompt_ids=",".join(map(str, IDS[name][:12])),
        max_new_tokens=1, **options,
    )  # fmt: skip
    return report["result"]["experts"], seen, heats


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("name, hidden, top", [("mixtral", 36, 3), ("qwen2-moe", 36, 3)])
@pytest.mark.parametrize("way", ["ring", "multicast", "crossbar"])
@pytest.mark.parametrize("grid", [(2, 2), (1, 1)], ids=str)
@pytest.mark.sample(2)
def test_pairs_and_links_are_those_of_what_the_tokens_chose(
    grid: tuple[int, int], way: str, name: str, hidden: int, top: int, tmp_path: Path, comm: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    where = REGIONS if grid == (2, 2) else {"experts": "split"}
    said, seen, heats = run(name, tmp_path, comm, monkeypatch, dispatch=way, capacity=3, **where)
    assert len(seen) == len(heats) == len(said["traffic"]) > 1
    for chosen, heat in zip(seen, heats, strict=True):
        tokens = by_hand(chosen, (4, 4), grid, 3)
        piece = {"dispatch": 4 * (-(-hidden // 4) + 2 * top), "combine": 4 * -(-hidden // 4)}
        for part, pairs in heat.pairs.items():
            goes = tokens if part == "dispatch" else tokens.T
            assert (pairs == 4 * piece[part] * goes).all()
            if way != "crossbar":
                continue
            for row in range(4):  # core by core: every packet goes over every link between its rows
                down = goes[: row + 1, row + 1 :].sum() * piece[part]
                up = goes[row:, :row].sum() * piece[part]
                assert (heat.links[part][SOUTH, row] == down).all() and (heat.links[part][NORTH, row] == up).all()


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("way", ["ring", "multicast", "crossbar"])
def test_the_hottest_and_the_coldest_are_told(
    way: str, tmp_path: Path, comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, _, heats = run("olmoe", tmp_path, comm, monkeypatch, dispatch=way, **REGIONS)
    total = 0
    for layer, heat in zip(said["traffic"], heats, strict=True):
        for part in ("dispatch", "combine"):
            links = {(PORT_NAMES[port], x, y): int(heat.links[part][port, y, x]) for port, y, x in np.ndindex(4, 4, 4)}
            rows = np.arange(4)
            pairs = {
                (int(row), int(other)): int(heat.pairs[part][row, other])
                for row in rows
                for other in rows
                if row != other
            }
            of_part = layer[part]
            for shown, every, count, name in (
                (of_part["links"], links, 48, lambda end: (end["port"], *end["core"])),
                (of_part["pairs"], pairs, 12, lambda end: (end["from_row"], end["to_row"])),
            ):
                used = [nbytes for nbytes in every.values() if nbytes]
                assert shown["hottest"]["bytes"] == max(used) == every[name(shown["hottest"])]
                assert shown["coldest"]["bytes"] == min(used) == every[name(shown["coldest"])]
                assert shown["unused"] == count - len(used)
                assert shown["mean_bytes"] == sum(used) / count
                assert shown["imbalance"] == max(used) / (sum(used) / count)
            total += sum(links.values())
    routed = sum(map(sum, said["tokens"])) * 36 * 4 * 2  # there and back
    assert said["link_bytes_per_routed_byte"] == total / routed


@pytest.mark.mpi(ranks=[1])
def test_where_no_token_moves_there_is_nothing_hot(tmp_path: Path, comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said, *_ = run("mixtral", tmp_path, comm, monkeypatch)
    assert said["traffic"] is None


@pytest.mark.mpi(ranks=[2, 4])
@pytest.mark.sample(1)
@pytest.mark.parametrize("way", ["ring", "multicast", "crossbar"])
def test_several_ranks_find_the_same_links(way: str, tmp_path: Path, comm: Any) -> None:
    common: dict[str, Any] = {
        "model": "mixtral-tiny", "prompt_tokens": 24, "max_new_tokens": 1, "layers": 1, "routing": "zipf:1",
        "dispatch": way, **REGIONS,
    }  # fmt: skip

    def traffic(ranks: Any) -> Any:
        return run_report(ranks, "llama", (4, 8), payload=False, **common)["result"]["experts"]["traffic"]

    assert traffic(comm) == on_one_rank(comm, traffic)


@pytest.mark.mpi(ranks=[1])
def test_what_is_uneven_is_hotter(comm: Any) -> None:
    """By shape: the links that only routed tokens take, where experts are chosen unevenly."""
    even, uneven = (
        run_report(
            comm, "llama", (8, 8), payload=False, model="mixtral-tiny", prompt_tokens=256, max_new_tokens=1, layers=1,
            routing=routing, dispatch="crossbar", experts="regions", expert_grid="2x4",
        )["result"]["experts"]["traffic"][0]["dispatch"]["links"]["imbalance"]
        for routing in ("uniform", "zipf:2")
    )  # fmt: skip
    assert uneven > even
