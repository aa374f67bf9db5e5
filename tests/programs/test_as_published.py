"""WaferLLM's published programs (`--as-published`): the reference's numbers, counts on paper, the same on any ranks."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measure import measured, on_one_rank
from random_models import BASE, random_checkpoint
from runs import new_block, run_program

from meshrt.errors import UsageError
from meshrt.mesh.device import Device
from meshrt.mesh.presets import WSE2
from meshrt.models.config import read_config
from meshrt.models.reference import forward, load_weights
from meshrt.programs.mesh.published.onehead import add_to_roots, groups_of, open_chains

# One head of the embedding's width. On 4 x 4 cores 8 numbers of 30 to a core, 13 of 50, 3 tokens of 9: padding in all.
ONE = BASE | {"hidden_size": 30, "intermediate_size": 50, "num_attention_heads": 1, "num_key_value_heads": 1}
IDS = [5, 17, 3, 88, 41, 9, 60, 2, 33, 71, 12, 95, 28]
PROMPT = 9


def one_head_model(comm: Any, folder: Path) -> Path:
    model = Path(comm.bcast(str(folder))) / "one"
    if comm.rank == 0:
        random_checkpoint(ONE, model, 3)
    comm.Barrier()
    return model


def run(
    comm: Any, model: Path, side: int, payload: bool = True, device: str = "wse2", **options: Any
) -> Any:  # fmt: skip
    given = {"as_published": True, "dtype": "float32", "ignore_eos": True} | options
    report = run_program(comm, "llama", (side, side), device, None, payload, model=str(model), **given)
    return comm.bcast(report)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("side", [1, 3, 4, 5])
def test_every_logit_of_prefill_and_decode_is_the_reference_s(side: int, tmp_path: Path, comm: Any) -> None:
    is_right(comm, side, tmp_path)


@pytest.mark.mpi(ranks=[2, 4])
@pytest.mark.parametrize("side", [4, 8])
def test_so_it_is_on_several_ranks(side: int, tmp_path: Path, comm: Any) -> None:
    is_right(comm, side, tmp_path)


def is_right(comm: Any, side: int, tmp_path: Path) -> None:
    model = one_head_model(comm, tmp_path)
    logits = Path(comm.bcast(str(tmp_path))) / "logits.npy"
    report = run(
        comm,
        model,
        side,
        device="ideal",
        prompt_ids=",".join(map(str, IDS[:PROMPT])),
        max_new_tokens=5,
        logits=str(logits),
    )
    ids = [*IDS[:PROMPT], *report["result"]["token_ids"]]
    exact = forward(read_config(model), load_weights(model), ids[:-1])
    assert np.abs(np.load(logits) - exact).max() < 1e-4


@pytest.mark.mpi(ranks=[2, 4])
def test_counts_and_time_are_the_same_on_any_ranks(tmp_path: Path, comm: Any) -> None:
    model = one_head_model(comm, tmp_path)
    for options in ({"prompt_tokens": PROMPT, "max_new_tokens": 3}, {"context": 11, "max_new_tokens": 3}):
        together = run(comm, model, 4, False, **options)
        alone = on_one_rank(comm, lambda single, options=options: run(single, model, 4, False, **options))
        assert together["measured"] == alone["measured"]
        assert together["result"] == alone["result"]


@pytest.mark.mpi(ranks=[1])
def test_layers_by_shape_send_what_they_send_with_numbers(tmp_path: Path, comm: Any) -> None:
    """Beside them are embedding and head, the same whatever the number of layers."""
    model = one_head_model(comm, tmp_path)
    options = {"prompt_tokens": PROMPT, "max_new_tokens": 3}
    messages = {
        (payload, layers): run(comm, model, 4, payload, layers=layers, **options)["measured"]["messages"]
        for payload in (False, True)
        for layers in (1, 2)
    }
    assert messages[False, 2] - messages[False, 1] == messages[True, 2] - messages[True, 1] > 0
    assert messages[True, 1] > messages[False, 1]


@pytest.mark.mpi(ranks=[1])
def test_a_few_steps_take_the_time_of_all(comm: Any, tmp_path: Path) -> None:
    side = 12
    model = shapes(tmp_path, 9 * side, 30 * side)
    options = {"prompt_tokens": 9 * side, "max_new_tokens": 1, "dtype": "float16"}
    whole = run(comm, model, side, False, **options)["result"]["layer_cycles"]["prefill"]
    assert run(comm, model, side, False, steps_run=4, **options)["result"]["layer_cycles"]["prefill"] == (
        pytest.approx(whole, rel=5e-4)
    )


def shapes(folder: Path, hidden: int, inner: int) -> Path:
    """A model of one layer of these sizes, with several heads, and no weights."""
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": 2}
    (folder / "config.json").write_text(json.dumps(BASE | sizes | {"num_key_value_heads": 1}))
    return folder


# ------------------------------------------------------------------------------------------------------- on paper


def vector(numbers: int, operands: int = 2) -> float:
    """An instruction on 16-bit numbers that reads so many vectors: two of them in the same cycle in one place of 8."""
    return WSE2.call_cycles + (1.875 if operands > 1 else 1.0) * (1 + (numbers - 1) / 4)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("side", [1, 2])
def test_a_layer_of_decode_on_paper(side: int, comm: Any, tmp_path: Path) -> None:
    """As decode.csl has it, on cores with d numbers of the embedding, f of the MLP and s tokens each."""
    d, f, s = 12, 14, 7
    model = shapes(tmp_path, d * side, f * side)
    options = {"context": s * side - 1, "max_new_tokens": 2, "dtype": "float16"}
    counted = run(comm, model, side, False, **options)["result"]["layer_cycles"]["decode"]
    products = [(d, d)] * 3 + [(d, s), (s, d), (d, d), (d, f), (d, f), (f, d)]
    cycles = sum(vector(n, 0) + WSE2.loop_cycles + k * vector(n) for k, n in products)
    cycles += 2 * 2 * vector(d) + 2 * 2 * vector(d, 1)  # norms: squares and weights; their sum, and what divides them
    cycles += 2 * 3 * vector(d) + 5 * vector(s, 1) + vector(f) + 2 * vector(d)
    divisions, roots, exponentials = 2 * 2 + 1 + d, 2, s + d
    cycles += 60 * divisions + 50 * roots + 16 * exponentials
    cycles += (13 + 20 + 46 + 8 + 15 + 6 + 6 + 3 + 13 + 13 + 3 + 6 + 3) * WSE2.loop_cycles / 6
    if side == 2:  # a hop and an addition to the root, all of the words, and the same way back without the addition
        for numbers in (1, 3 * d, s, 1, 1, d, d, 1, 2 * f, d):
            words = -(-2 * numbers // 4)
            cycles += WSE2.collective_cycles + 2 * WSE2.alpha + WSE2.beta + 2 * words
    assert counted == pytest.approx(cycles)


@pytest.mark.mpi(ranks=[1])
def test_a_layer_of_prefill_on_paper(comm: Any, tmp_path: Path) -> None:
    """Messages of every step on 5 x 5 cores, where each core has t tokens."""
    side, t, d, f = 5, 3, 4, 6
    model = shapes(tmp_path, d * side, f * side)
    report = run(comm, model, side, False, prompt_tokens=t * side, max_new_tokens=1, dtype="float16")
    (phase,) = (phase for phase in report["phases"] if phase["name"] == "prefill")
    cores = side * side
    products = 8 * side * 2 * cores  # a tile of A and one of B each step
    aligning = 5 * (side // 2) * cores + (side // 2) * cores  # and the values
    scores = side * (cores + side * (side - 1))  # keys go round, and chains add up
    sums = 4 * side * (side - 1 + 1)  # two norms, maximum and sum: to the middle core, and one packet back
    assert phase["messages"] == products + aligning + scores + sums


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("stream", [True, False])
def test_what_two_chains_add_up_is_counted(stream: bool, comm: Any) -> None:
    """Four additions of 6 numbers of two bytes in each of three rows, whichever core the sum is for."""
    block = new_block(comm, (5, 3), Device(name="wide", adds_per_cycle=2.0, stream_adds=stream))
    tiles = block.tiles("A", (2, 3), "float16")
    tiles[...] = 1
    with ExitStack() as routes:
        add_to_roots(block, open_chains(routes, block), tiles, roots := np.array([0, 2, 4]))
    assert (tiles[[0, 1, 2], roots] == 5).all()
    counted = measured(block)
    assert (counted["adds"], counted["operand_bytes"]) == (3 * 4 * 6, 3 * 4 * 6 * 2 * (1 if stream else 3))
    # 6 numbers at 2 a cycle: two hops, and from both sides into the middle core; or four hops, and at each core.
    assert counted["critical_path"]["cycles"] == (2 + 2 * 3 if stream else 4 + 4 * 3)


def test_groups_are_those_of_the_published_configurations() -> None:
    published = {240: 15, 256: 16, 300: 15, 360: 18, 420: 20, 480: 20, 540: 20, 600: 24, 660: 22, 720: 24, 8: 2}
    assert {n: groups_of(n) for n in published} == published


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("mesh", "options", "words"),
    [
        ((4, 4), {"model": "llama-tiny"}, "its numbers would be another model's: add --payload none"),
        ((4, 4), {"model": "mixtral-8x7b", "payload": False}, "dense layers of whole matrices"),
        ((4, 4), {"model": "llama-tiny", "payload": False, "bits": 3}, "dense layers of whole matrices"),
        ((4, 4), {"model": "llama-tiny", "payload": False, "ratio": 0.5}, "dense layers of whole matrices"),
        ((4, 5), {"model": "llama-tiny", "payload": False}, "mesh 4x5: --as-published is for as many columns as rows"),
        ((4, 4), {"model": "llama-tiny", "payload": False, "regions": 2}, "leave --regions away"),
        ((2, 2), {"model": "{one}"}, "each has 15 numbers of the head"),
    ],
)
def test_what_the_programs_do_not_do_is_refused(
    mesh: tuple[int, int], options: dict[str, Any], words: str, comm: Any, tmp_path: Path
) -> None:
    given = options | {"model": options["model"].format(one=one_head_model(comm, tmp_path)), "as_published": True}
    with pytest.raises(UsageError, match=words):
        run_program(comm, "llama", mesh, "ideal", prompt_tokens=4, max_new_tokens=2, **given)
