"""Pipelines and replicas of tensor-parallel groups: the text of one group on any ranks, bubbles, bytes, refusals."""

from pathlib import Path
from typing import Any, cast

import pytest
from gpu_runs import Alone, how_of, new_gpus, run_gpus
from test_lowrank import GQA, random_model

from meshrt.errors import LimitError, UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.presets import find_gpu
from meshrt.gpu.stages import pass_on, tensor_groups
from meshrt.models.catalogue import find_model
from meshrt.models.family import read_family
from meshrt.programs.gpu.pipeline import answer, open_pipelines
from meshrt.programs.gpu.quantizing import hold_of
from meshrt.programs.gpu.serving.request import Request
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console, Turns
from meshrt.ranks.control import Control

GROUPS = [(2, 2, 1), (1, 4, 1), (2, 3, 1), (1, 2, 2), (4, 1, 2), (2, 2, 2)]  # tp, pp, dp
ASKED: dict[str, Any] = {"max_new_tokens": 5, "scheme": "dense"}
PROMPTS = ["Once upon a time", "The dog", "A big red cat sat", '{"prompt": "Tom and Lily"}', "There was"]


def in_groups(tp: int, pp: int, dp: int, comm: Any = None, payload: bool = True, **more: Any) -> Gpus:
    control = Control(comm or Alone(), Board.alone(), "test")
    device = find_gpu(more.pop("device", "a800"), link="pcie")
    return Gpus(tp * pp * dp, device, control, payload, pp=pp, dp=dp, **more)


def outside_host(report: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in report.items() if key != "host"}


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts"
    path.write_text("\n".join(PROMPTS) + "\n")
    return str(path)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize("micro_batches", [3, *(pytest.param(count, marks=pytest.mark.all) for count in (None, 1))])
def test_groups_write_what_one_group_writes_on_any_ranks(
    micro_batches: int | None, mpi_tmp_path: Path, comm: Any
) -> None:
    file = mpi_tmp_path / "prompts"
    if comm.rank == 0:
        file.write_text("\n".join(PROMPTS) + "\n")
    comm.Barrier()
    one_group = run_gpus(new_gpus(2), "llama-tiny", "llama", prompts=str(file), **ASKED)
    texts = [each["token_ids"] for each in one_group["result"]["requests"]]
    for tp, pp, dp in GROUPS:
        if tp * pp * dp < comm.size:
            continue
        together, alone = (
            run_gpus(
                in_groups(tp, pp, dp, where), "llama-tiny", "llama", prompts=str(file), micro_batches=micro_batches,
                **ASKED,
            )
            for where in (comm, None)
        )  # fmt: skip
        assert [each["token_ids"] for each in together["result"]["requests"]] == texts
        assert outside_host(together) == outside_host(alone)


@pytest.mark.parametrize("scheme", ["dense", "base", "deinfer"])
def test_one_prompt_in_parts_through_the_stages_of_any_model(tmp_path: Path, scheme: str) -> None:
    model = random_model(tmp_path / "model", GQA)
    arguments: dict[str, Any] = {
        "prompt_ids": "5,9,2,7,3,8,1",
        "max_new_tokens": 5,
        "ignore_eos": True,
        "scheme": scheme,
    }
    one_group = run_gpus(new_gpus(2), model, "llama", **arguments)["result"]
    for pp, micro_batches in ((2, None), (2, 1), (2, 5), (2, 9)):
        report = run_gpus(in_groups(2, pp, 1), model, "llama", micro_batches=micro_batches, **arguments)
        assert report["result"]["token_ids"] == one_group["token_ids"]
        assert report["result"]["ttft_seconds"] > 0 and sum(report["result"]["layers_of_stages"]) == one_group["layers"]
        by_shape = run_gpus(
            in_groups(2, pp, 1, payload=False), model, "llama", micro_batches=micro_batches, **arguments
        )
        for whole in ("measured", "phases"):
            assert by_shape[whole] == report[whole]


@pytest.mark.mpi(ranks=[1, 2])
def test_of_uneven_stages_it_is_said_on_any_ranks_that_layers_stood_for_others(comm: Any) -> None:
    """The first of three layers is a stage that runs whole; the rank that has it alone writes the report."""
    arguments = {"layers": 3, "layers_run": 1, "prompt_tokens": 5, "max_new_tokens": 2, "scheme": "dense"}
    together, alone = (
        run_gpus(in_groups(1, 2, 1, where, payload=False), "llama3-8b", "llama", **arguments) for where in (comm, None)
    )
    assert outside_host(together) == outside_host(alone)
    assert together["kinds"]["measured.critical_path.seconds"] == "extrapolated"


def test_stages_of_several_nodes_send_by_the_adapters_of_each() -> None:
    """Of 8 GPUs in nodes of 4 each node sends with 4 adapters, a GPU with one; of 4 in one node it is the same."""
    for tp in (4, 8):
        gpus = Gpus(2 * tp, find_gpu("h100"), Control(Alone(), Board.alone(), "test"), False, node_size=4, pp=2)
        ((first, second),) = tensor_groups(gpus)
        parts = [gpu.shaped((1 << 20, 64)) for gpu in first.mine]
        begin = gpus.device.launch_seconds + gpus.device.kernel_seconds
        protocols, nbytes = gpus.device.network_protocols, parts[0].nbytes
        took = [
            protocol.seconds + protocol.step_seconds + nbytes / (protocol.share * gpus.device.network_bytes_per_second)
            for protocol in protocols
        ]
        arrivals = pass_on(gpus, first, second, parts, parts[0].shape).arrivals
        assert arrivals == pytest.approx([begin + min(took)] * tp, rel=1e-12)


def test_bytes_between_stages_are_those_of_activations_and_tokens() -> None:
    """Each of tp GPUs sends [tokens, hidden] to each next stage, and its new tokens, float32, back to the first."""
    tp, pp, new, tokens = 2, 4, 6, 5
    arguments = {
        "prompt_ids": "5,9,2,7,3",
        "max_new_tokens": new,
        "ignore_eos": True,
        "scheme": "dense",
        "dtype": "float16",
    }
    report = run_gpus(in_groups(tp, pp, 1), "llama-tiny", "llama", **arguments)
    hidden = read_family(find_model("llama-tiny")).hidden
    want = tp * ((pp - 1) * (tokens + new - 1) * hidden * 2 + new * 4)
    assert report["measured"]["collectives"]["send"]["bytes"]["total"] == want


@pytest.mark.parametrize("pp, count", [(2, 2), (4, 4), (4, 8), (8, 8)])
def test_bubbles_are_those_of_a_pipeline(pp: int, count: int) -> None:
    """Of equal micro-batches each stage is idle for pp - 1 of m + pp - 1 turns (GPipe, section 2.3), if all stages take
    as long; here the last one has the head and what is sent takes time."""
    family = read_family(find_model("llama3-8b"))
    gpus = in_groups(1, pp, 1, payload=False, device="h100")
    requests = [Request(at, (1,) * 4096, 1) for at in range(count)]
    how = how_of(scheme="dense", dtype="float16")
    answer(open_pipelines(gpus, family, None, how, requests, hold_of(family, how), count), requests)
    idle = sum(gpu.counters.bubble_seconds for gpu in gpus.mine) / len(gpus.mine) / gpus.mine[0].now
    assert idle == pytest.approx((pp - 1) / (count + pp - 1), rel=0.06)
    assert [request.times[0] for request in requests] == sorted(request.times[0] for request in requests)


@pytest.mark.parametrize("pp, count", [(2, 1), (4, 1), (4, 2)])
def test_new_tokens_of_few_sequences_keep_a_stage_busy_at_a_time(pp: int, count: int, tmp_path: Path) -> None:
    """Of m sequences and p stages: a token has to be through all of them before the next, so m of p are at work."""
    arguments: dict[str, Any] = {"layers": 4, "max_new_tokens": 9, "scheme": "dense", "dtype": "float16"}
    (tmp_path / "ids").write_text(count * "Once\n")
    more = {"prompt_tokens": 5} if count == 1 else {"prompts": str(tmp_path / "ids"), "ignore_eos": True}
    gpus = in_groups(1, pp, 1, payload=False, device="h100")
    report = run_gpus(gpus, "llama-tiny", "llama", **arguments, **more)
    decode = report["phases"][-1]
    idle = decode["bubble_seconds"]["total"] / pp / decode["critical_path"]["seconds"]
    assert idle == pytest.approx(1 - count / pp, rel=0.06)
    assert decode["bubble_seconds"]["max"] < decode["critical_path"]["seconds"]


def test_stages_share_layers_and_memory() -> None:
    """A stage holds its layers' weights and cache alone: of four, about a quarter each."""
    peaks = {}
    for pp in (1, 4):
        gpus = in_groups(1, pp, 2 if pp == 1 else 1, payload=False)
        requests = [Request(at, (1,) * 64, 2) for at in range(2)]
        family, how = read_family(find_model("llama3-8b")), how_of(scheme="dense", dtype="float16")
        answer(open_pipelines(gpus, family, None, how, requests, hold_of(family, how), None), requests)
        peaks[pp] = [gpu.memory.peak for gpu in gpus.mine]
    head = 128256 * 4096 * 2
    whole = peaks[1][0] - 2 * head
    assert max(peaks[4]) == pytest.approx(whole / 4 + head, rel=0.01)
    assert min(peaks[4]) == pytest.approx(whole / 4, rel=0.01)
    gpus = in_groups(1, 2, 1, payload=False, device="a100-40g")
    family, how = read_family(find_model("llama3-70b")), how_of(scheme="dense", dtype="float16")
    with pytest.raises(LimitError, match="GPU 0: 'weights' asks for"):
        open_pipelines(gpus, family, None, how, [Request(0, (1,), 1)], hold_of(family, how), None)


def test_replicas_do_not_wait_for_each_other_but_at_the_end(prompts: str) -> None:
    report = run_gpus(in_groups(2, 1, 5), "llama-tiny", "llama", prompts=prompts, **ASKED | {"max_new_tokens": 150})
    lengths = {len(each["token_ids"]) for each in report["result"]["requests"]}
    assert len(lengths) > 1  # they end at different times
    assert report["measured"]["bubble_seconds"]["max"] > 0
    assert "send" not in report["measured"]["collectives"]


@pytest.mark.parametrize("options, settings, says", [
    ({}, {"static": True}, "--static records one group's kernels"),
    ({"kv": "lowrank"}, {}, "--kv lowrank keeps latents"),
    ({"scheme": "overlapped"}, {}, "second stream"),
    ({"temperature": 1.0}, {}, "--temperature draws"),
    ({"checkpoint": "x"}, {}, "--checkpoint keeps"),
    ({"prompt_ids": "1"}, {"dp": 2}, "--dp is 2, and there is a prompt for 1"),
    ({"resume": True}, {}, "--resume goes on from the state in a folder"),
    ({"every": 3}, {"dp": 2}, "--every is 3 and no state is kept"),
    ({"capacity": 2.0}, {}, "--capacity is about the experts of a model"),
    ({}, {"console": Console(turns=cast(Turns, True))}, "a dialogue goes on in the cache of one group"),
    ({"layers": 1}, {}, "--pp is 2; the model has 1 layers"),
    ({"kv_blocks": 1, "prompt_tokens": 20}, {}, "request 0 needs 4 blocks"),
])  # fmt: skip
def test_what_cannot_be_combined_is_refused(options: dict[str, Any], settings: dict[str, Any], says: str) -> None:
    with pytest.raises((UsageError, LimitError), match=says):
        run_gpus(in_groups(1, 2, settings.pop("dp", 1), **settings), "llama-tiny", "llama", **options)


def test_groups_and_micro_batches_are_for_llama() -> None:
    for name in ("lowrank", "serve"):
        with pytest.raises(UsageError, match="--pp and --dp are for `llama --on gpu`"):
            run_gpus(in_groups(1, 2, 1), "llama-tiny", name)
    with pytest.raises(UsageError, match="--micro-batches is for pipelines: give --pp"):
        run_gpus(new_gpus(1), "llama-tiny", "llama", micro_batches=2)
