"""`meshrt fit`: what a run would hold, told without it, is what the run then holds, to the byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from mpi_jobs import Finished

import meshrt
from meshrt.errors import LimitError, UsageError
from meshrt.fitting.fit import fitted
from meshrt.mesh.collectives import shifts
from meshrt.program import load_program

MANY = 200
FREE = 1 << 40  # bytes: a core that is never full


def drawn(number: int) -> tuple[str, dict[str, Any]]:
    """A program and options, also such that it refuses or that do not fit; some with numbers, most by shape."""
    draw = Random(number)
    mesh = draw.randint(1, 7), draw.randint(1, 7)
    dtype = draw.choice(["float32", "bfloat16", "float16"])
    payload = draw.random() < 0.2
    name = ["gemm", "llama", "gemv", "kvcache", "llama", "graph", "allreduce", "llama", "dispatch", "shift"][
        number % 10
    ]
    sizes = {key: draw.randint(1, 600) for key in "mkn"}
    options: dict[str, Any] = {
        "gemm": lambda: {
            **sizes, "dtype": dtype, "algorithm": draw.choice(["meshgemm", "cannon", "summa", "allgather"]),
            "transpose_b": draw.random() < 0.3,
        },
        "gemv": lambda: {"k": 5 * sizes["k"], "n": 5 * sizes["n"], "dtype": dtype,
                         "allreduce": draw.choice(["ktree", "pipeline", "ring"])},
        "kvcache": lambda: {"policy": draw.choice(["shift", "concat", "roundrobin"]), "tokens": draw.randint(1, 40),
                            "layers": draw.randint(1, 9)},
        "allreduce": lambda: {"size": draw.randint(1, 9000)},
        "shift": lambda: {"tile": draw.randint(1, 120)},
        "graph": dict,
        "dispatch": dict,
        "llama": lambda: {
            "model": draw.choice(["llama-tiny", "llama-tiny", "mixtral-tiny", "deepseek-tiny"]), "dtype": dtype,
            "prompt_tokens": draw.randint(1, 40), "max_new_tokens": draw.randint(1, 5),
            "kv": draw.choice(["shift", "concat", "roundrobin"]), "regions": draw.choice([1, 1, 2, 3]),
            "system": draw.choice(["waferllm", "waferllm", "t10", "ladder"]),
            "allreduces": draw.choice(["fused", "separate"]),
        },
    }[name]()  # fmt: skip
    return name, {**options, "mesh": mesh, "payload": payload and name != "llama"}


@pytest.mark.sample(6)
@pytest.mark.parametrize("number", range(MANY))
def test_what_is_told_is_what_a_run_then_holds(number: int) -> None:
    name, options = drawn(number)
    shapes = {key: value for key, value in options.items() if key != "payload"}
    try:
        answer = meshrt.fit(name, search=False, **shapes)
    except (UsageError, LimitError) as error:
        with pytest.raises(type(error)):
            meshrt.run(name, **options)
        return
    held = meshrt.run(name, **options, core_memory=FREE)
    assert answer.nbytes == held["memory_bytes.max"]
    assert sum(nbytes for _, nbytes in answer.holders) <= answer.nbytes
    if answer.fits:
        assert meshrt.run(name, **options)["memory_bytes.max"] == answer.nbytes
    else:
        with pytest.raises(LimitError):
            meshrt.run(name, **options)


def test_an_error_does_not_search_where_a_look_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a mixture by T10, whose layers are all looked at; `fit` itself does."""
    monkeypatch.setattr("meshrt.fitting.fit.LONGEST_LOOK", 0.0)
    options: dict[str, Any] = {"mesh": (4, 4), "m": 1000, "k": 64, "n": 64}
    with pytest.raises(LimitError) as refused:
        meshrt.run("gemm", **options, payload=False)
    (note,) = refused.value.__notes__
    assert note.startswith("does not fit: ") and note.endswith("; `meshrt fit` finds what would do")
    assert meshrt.fit("gemm", **options).line() == note.replace("`meshrt fit` finds what", "--mesh 5x5")


def test_what_aligns_a_product_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sides that have no common divisor make as many steps of it as half their product; the first has all lines."""
    steps = list[object]()

    def counted(*rotation: Any, rotate: Callable[..., Any] = shifts._rotation) -> Iterator[Any]:
        for flights in rotate(*rotation):
            steps.append(flights)
            yield flights

    monkeypatch.setattr(shifts, "_rotation", counted)
    options: dict[str, Any] = {"mesh": (7, 5), "m": 70, "k": 105, "n": 35}
    with pytest.raises(UsageError, match="search is 'no'; it is True or False"):
        meshrt.fit("gemm", search="no", **options)  # type: ignore[arg-type]  # as a user may have it
    answer = meshrt.fit("gemm", search=False, **options)
    assert len(steps) == 2  # one along x, one along y
    report = meshrt.run("gemm", **options, payload=False)
    assert len(steps) == 2 + 2 * (7 * 5 // 2) and report["memory_bytes.max"] == answer.nbytes


def test_of_layers_the_second_may_be_the_fullest() -> None:
    """On 6 x 5 cores it holds 1,920 bytes more than the first, which follows none."""
    options: dict[str, Any] = {
        "mesh": (6, 5),
        "prompt_tokens": 22,
        "max_new_tokens": 1,
        "regions": 2,
        "dtype": "float16",
    }
    held = {
        layers: meshrt.run("llama", **options, layers_run=layers, payload=False, core_memory=FREE)["memory_bytes.max"]
        for layers in (1, 2)
    }
    assert held[2] == held[1] + 1920
    assert meshrt.fit("llama", search=False, **options).nbytes == held[2]


def test_of_steps_the_middle_one_may_be_the_fullest() -> None:
    """Ladder's steps each ask another core, that in the middle of a line from both sides; of two steps it is none."""
    name, options = drawn(7107)
    shapes = {key: value for key, value in options.items() if key != "payload"}
    held = {
        steps: meshrt.run(name, **options, steps_run=steps, core_memory=FREE)["memory_bytes.max"] for steps in (2, 3)
    }
    assert options["system"] == "ladder" and held[3] == held[2] + 8
    assert meshrt.fit(name, search=False, **shapes).nbytes == held[3]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "options"),
    [("gemm", {"mesh": (8, 6), "m": 700, "k": 900, "n": 800}), ("llama-tiny", {"mesh": (4, 4), "layers": 3})],
)
def test_the_mesh_that_would_do_does_and_one_column_fewer_does_not(name: str, options: dict[str, Any]) -> None:
    answer = meshrt.fit(name, **options)
    assert not answer.fits and answer.mesh is not None
    width, height = answer.mesh
    sides = options.pop("mesh")
    narrower = width - 1, round((width - 1) * sides[1] / sides[0])
    assert meshrt.fit(name, mesh=(width, height), search=False, **options).fits
    assert not meshrt.fit(name, mesh=narrower, search=False, **options).fits


def test_the_longest_context_fits_and_one_token_more_does_not() -> None:
    options = {"mesh": (8, 8), "max_new_tokens": 1}
    answer = meshrt.fit("llama-tiny", **options)
    assert answer.fits and answer.context is not None
    assert meshrt.fit("llama-tiny", search=False, context=answer.context, **options).fits
    assert not meshrt.fit("llama-tiny", search=False, context=answer.context + 1, **options).fits


def test_the_fewest_regions_are_told() -> None:
    answer = meshrt.fit("llama-tiny", mesh=(6, 6))
    assert not answer.fits and answer.regions is not None
    assert meshrt.fit("llama-tiny", mesh=(6, 6), regions=answer.regions, search=False).fits
    assert not meshrt.fit("llama-tiny", mesh=(6, 6), regions=answer.regions - 1, search=False).fits


def test_the_command_names_holders_and_what_would_do(run_meshrt: Callable[..., Finished]) -> None:
    line = ["gemm", "--mesh", "8x8", "--m", "1000", "--k", "1000", "--n", "1000"]
    finished = run_meshrt("fit", *line, "--format", "json")
    assert finished.code == 3
    answer = json.loads(finished.stdout)
    assert not answer["fits"] and len(answer["holders"]) == 5 and answer["mesh"] == [25, 25]
    assert run_meshrt("fit", *line[:1]).stdout.startswith("fits: core (0, 0) holds")


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_run_that_does_not_fit_ends_with_the_same_line(ranks: int, run_meshrt: Callable[..., Finished]) -> None:
    line = ["gemm", "--mesh", "8x8", "--m", "1000", "--k", "1000", "--n", "1000"]
    verdict = run_meshrt("fit", *line).stdout.splitlines()[0]
    finished = run_meshrt("run", *line, ranks=ranks)
    assert finished.code == 3
    assert verdict.startswith("does not fit: core (0, 0) would hold") and finished.stderr.rstrip().endswith(verdict)


def test_what_the_machine_cannot_be_is_refused_as_by_a_run() -> None:
    for name, settings, message in (
        ("gemm", {"defects": "0.1", "defects_seed": -1}, "--defects-seed is -1; it starts at 0"),
        ("lowrank", {"link_rate": 0.0}, "--link-rate is 0.0; it is 1e-15 to 1e.18"),
    ):
        with pytest.raises(UsageError, match=message):
            fitted(load_program(name), {}, settings)
