"""`meshrt fit` of GPUs, NeuronCores and Arm cores: what it tells is what a run then holds, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from mpi_jobs import Finished

import meshrt
from meshrt.errors import LimitError, UsageError

MANY = 200
MEMORY = {"gpu": "gpu_memory", "arm": "dram"}


def drawn(number: int) -> tuple[str, str, dict[str, Any]]:
    """A program, its machine and options, some with numbers; some are refused, on some memory is short."""
    draw = Random(number)
    payload = draw.random() < 0.3
    prompt = draw.randint(1, 20)
    model = draw.choice(["llama-tiny", "llama-tiny", "mixtral-tiny", "deepseek-tiny"])
    text = {"model": model, "prompt_tokens": prompt, "max_new_tokens": draw.randint(1, 3)}
    name, machine = [
        ("llama", "gpu"), ("xuv", "neuron"), ("lowrank", "gpu"), ("llama", "arm"), ("serve", "gpu"),
        ("llama", "neuron"), ("llama", "gpu"), ("linear", "arm"),
    ][number % 8]  # fmt: skip
    options: dict[str, Any] = {
        "llama": lambda: text | {
            "gpu": {"bits": draw.choice([3, 4, None])}, "neuron": {"model": "llama-tiny"}, "arm": {},
        }[machine],
        "lowrank": lambda: text | {"model": "llama-tiny", "kv": "dense"},
        "serve": lambda: {"model": "llama-tiny", "requests": draw.randint(1, 6), "prompt_tokens": str(prompt)},
        "xuv": lambda: {
            **{side: 128 * draw.randint(1, 4) for side in "mkn"}, "r": draw.choice([64, 128]),
            "kernel": draw.choice(["dense", "sequential", "naive", "fused"]),
        },
        "linear": dict,
    }[name]()  # fmt: skip
    if machine != "arm":
        options["tp" if machine == "gpu" else "cores"] = draw.choice([1, 1, 2, 3, 4])
    if machine == "gpu" and draw.random() < 0.4:
        options["gpu_memory"] = draw.randint(100_000, 3_000_000)
    if machine == "arm" and draw.random() < 0.4:
        options["dram"] = draw.randint(100_000, 3_000_000)
    return name, machine, {**options, "payload": payload and model == "llama-tiny" and name != "serve"}


@pytest.mark.sample(8)
@pytest.mark.parametrize("number", range(MANY))
def test_what_is_told_of_devices_is_what_a_run_then_holds(number: int) -> None:
    name, machine, options = drawn(number)
    shapes = {key: value for key, value in options.items() if key != "payload"}
    try:
        answer = meshrt.fit(name, on=machine, search=False, **shapes)
    except (UsageError, LimitError) as error:
        with pytest.raises(type(error)):
            meshrt.run(name, on=machine, **options)
        return
    free = {key: value for key, value in options.items() if key not in MEMORY.values()}
    held = meshrt.run(name, on=machine, **free)
    assert answer.nbytes == held["memory_bytes.max"]
    assert sum(nbytes for _, nbytes in answer.holders) <= answer.nbytes
    assert len(answer.holders) == 5 or sum(nbytes for _, nbytes in answer.holders) == answer.nbytes
    if answer.fits:
        assert meshrt.run(name, on=machine, **options)["memory_bytes.max"] == answer.nbytes
    else:
        with pytest.raises(LimitError):
            meshrt.run(name, on=machine, **options)


def test_the_fewest_gpus_do_and_one_fewer_does_not() -> None:
    options: dict[str, Any] = {"on": "gpu", "gpu_memory": 700_000, "prompt_tokens": 5}
    answer = meshrt.fit("llama-tiny", tp=1, **options)
    assert not answer.fits and answer.devices == 4
    assert meshrt.fit("llama-tiny", tp=4, search=False, **options).fits
    assert not meshrt.fit("llama-tiny", tp=2, search=False, **options).fits
    with pytest.raises(UsageError):  # the heads cannot be shared by three
        meshrt.fit("llama-tiny", tp=3, search=False, **options)


def test_the_longest_context_on_gpus_fits_and_one_token_more_does_not() -> None:
    options: dict[str, Any] = {"on": "gpu", "gpu_memory": 2_400_000, "max_new_tokens": 1}
    answer = meshrt.fit("llama-tiny", **options)
    assert answer.fits and answer.context is not None
    assert meshrt.fit("llama-tiny", search=False, context=answer.context, **options).fits
    assert not meshrt.fit("llama-tiny", search=False, context=answer.context + 1, **options).fits


def test_it_is_no_longer_than_the_model_has_positions() -> None:
    answer = meshrt.fit("llama-tiny", on="gpu", max_new_tokens=1)
    assert answer.context is not None
    with pytest.raises(UsageError, match="positions"):
        meshrt.fit("llama-tiny", on="gpu", max_new_tokens=1, search=False, context=answer.context + 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_does_not_fit_a_gpu_ends_with_what_would(ranks: int, run_meshrt: Callable[..., Finished]) -> None:
    line = ["llama-tiny", "--on", "gpu", "--gpu-memory", "700000", "--prompt-tokens", "5", "--tp", "2"]
    verdict = run_meshrt("fit", *line).stdout.splitlines()[0]
    finished = run_meshrt("run", *line, ranks=ranks)
    assert finished.code == 3
    assert verdict.startswith("does not fit: GPU 0 would hold") and "--tp 4 would do" in verdict
    assert finished.stderr.rstrip().endswith(verdict.split(", up to")[0])


@pytest.mark.parametrize("line", ["llama-tiny --on arm --dram 300000", "serve --gpu-memory 300000 --tp 2"])
def test_where_a_run_by_shape_takes_long_it_ends_with_where_to_ask(
    line: str, run_meshrt: Callable[..., Finished]
) -> None:
    finished = run_meshrt("run", *line.split())
    assert finished.code == 3
    assert finished.stderr.rstrip().endswith("`meshrt fit` tells what it would hold, and what would do")


def test_stages_and_replicas_are_not_taken_for_members_of_a_group() -> None:
    answer = meshrt.fit("llama-tiny", on="gpu", tp=2, pp=2, prompt_tokens=5, max_new_tokens=2)
    assert answer.fits and answer.asked == (2, 1) and answer.devices == 1
