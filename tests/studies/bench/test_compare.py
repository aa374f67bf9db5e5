"""`meshrt bench gemm|gemv|kv|llama`: alternatives on the same work, in one table."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from measure import on_one_rank, run_report

import meshrt
from meshrt.errors import UsageError
from meshrt.mesh.devicefile import find_device
from meshrt.program import load_program
from meshrt.ranks.console import Console
from meshrt.studies.bench.compare import COMPARISONS, Comparison, alternatives, compare, print_comparison

Run = Callable[..., Any]
WORK: dict[str, dict[str, Any]] = {
    "gemm": {"m": 10, "k": 12, "n": 9},
    "gemv": {"k": 30, "n": 20},
    "kv": {"tokens": 9, "head_dim": 6, "heads": 2, "layers": 1},
}


def choices(name: str) -> tuple[str, ...]:
    comparison = COMPARISONS[name]
    return next(
        option.choices for option in load_program(comparison.program).options if option.name == comparison.option
    )


def of_wse2(comm: Any, name: str, payload: bool | None = None, only: tuple[str, ...] = (), **limits: int) -> Any:
    """A comparison on a small mesh."""
    device = find_device("wse2", **limits)
    return compare(comm, Console(), name, WORK[name], mesh=(4, 4), device=device, payload=payload, only=only)


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("name", WORK)
def test_every_choice_is_measured_as_if_it_ran_alone(name: str, comm):
    comparison = of_wse2(comm, name)
    rows = comparison["alternatives"]
    own = [row["arguments"][COMPARISONS[name].option] for row in rows]
    assert tuple(dict.fromkeys(own)) == choices(name)
    for row in rows:
        arguments = {**WORK[name], **row["arguments"]}
        report = on_one_rank(
            comm, lambda single, own=arguments: run_report(single, COMPARISONS[name].program, (4, 4), "wse2", **own)
        )
        assert row["refused"] is None
        assert all(row[key] == report[key] for key in ("result", "measured", "phases"))
        first = rows[0]["measured"]["critical_path"]["cycles"]
        assert row["relative_cycles"] == report["measured"]["critical_path"]["cycles"] / first
    assert list(comparison["host"]["wall_seconds"]) == [row["name"] for row in rows]
    assert comparison["host"]["ranks"] == comm.size
    comparison["host"] = None
    assert comparison == on_one_rank(comm, lambda single: {**of_wse2(single, name), "host": None})


def test_the_k_tree_comes_with_one_to_three_phases():
    by_name = alternatives(COMPARISONS["gemv"], load_program("gemv"))
    assert [by_name[f"ktree K={k}"]["phases"] for k in (1, 2, 3)] == [1, 2, 3]
    assert "pipeline" in by_name and "ring" in by_name


def test_only_takes_labels_and_choices():
    gemv = COMPARISONS["gemv"], load_program("gemv")
    assert list(alternatives(*gemv, ("ring", "ktree K=2"))) == ["ktree K=2", "ring"]
    assert len(alternatives(*gemv, ("ktree",))) == 3
    with pytest.raises(UsageError, match="--only star: there is no such alternative; there are ktree K=1, "):
        alternatives(*gemv, ("star",))


def test_a_program_without_the_option_is_compared_with_nothing():
    assert alternatives(Comparison("shift", "engine"), load_program("shift")) == {"shift": {}}


@pytest.mark.mpi(ranks=[1, 2])
def test_what_the_machine_refuses_is_in_the_table_with_the_reason(comm, capsys: pytest.CaptureFixture[str]):
    needed = {
        row["name"]: row["measured"]["memory_bytes"]["max"]
        for row in of_wse2(comm, "gemm", payload=True)["alternatives"]
    }
    assert needed["allgather"] > needed["meshgemm"]
    comparison = of_wse2(comm, "gemm", core_memory=needed["allgather"] - 1)
    refused = {row["name"]: row["refused"] for row in comparison["alternatives"]}
    assert refused["meshgemm"] is None and "the limit is" in refused["allgather"]
    assert "measured" not in comparison["alternatives"][list(refused).index("allgather")]
    print_comparison(comparison)
    lines = capsys.readouterr().out.splitlines()
    assert f"allgather is refused: {refused['allgather']}" in lines
    cells = dict(zip(refused, next(line for line in lines if line.startswith("path cycles")).split()[2:], strict=True))
    assert cells["allgather"] == "refused" and cells["meshgemm"] != "refused"


@pytest.mark.mpi(ranks=[1])
def test_the_first_that_ran_is_what_the_others_are_relative_to(comm):
    comparison = of_wse2(comm, "gemm", core_memory=1)
    assert all(row["refused"] for row in comparison["alternatives"])
    two = of_wse2(comm, "gemm", only=("meshgemm", "cannon"))["alternatives"]
    assert two[0]["relative_cycles"] == 1 and len(two) == 2


@pytest.mark.mpi(ranks=[1])
def test_large_meshes_go_without_numbers_unless_they_are_asked_for(comm):
    def payload(mesh: tuple[int, int], wanted: bool | None) -> str:
        work, ideal = {"k": 8, "n": 8}, find_device("ideal")
        comparison = compare(comm, Console(), "gemv", work, mesh=mesh, device=ideal, payload=wanted, only=("ring",))
        assert ("max_abs_error" in comparison["alternatives"][0]["result"]) == (comparison["payload"] == "full")
        return str(comparison["payload"])

    assert payload((64, 64), None) == "full"
    assert payload((65, 64), None) == "none"
    assert payload((65, 64), True) == "full"
    assert payload((4, 4), False) == "none"


@pytest.mark.mpi(ranks=[1, 2])
def test_ways_to_experts_say_the_same(comm):
    """Placements and dispatches of a mixture: the same text, and what each measures is what it does alone."""
    work = {"model": "mixtral-tiny", "layers": 1, "prompt_ids": "5,96,7,130,2", "max_new_tokens": 2}
    comparison = compare(comm, Console(), "experts", work, mesh=(4, 4), device=find_device("ideal"))
    rows = {row["name"]: row for row in comparison["alternatives"]}
    assert [*rows] == [
        "split padded", "split dense", "split ring", "split multicast", "split crossbar", "regions ring",
        "regions multicast", "regions crossbar",
    ]  # fmt: skip
    assert all(row["agrees"] for row in rows.values())
    options = {**work, "experts": "regions", "dispatch": "crossbar"}
    alone = on_one_rank(comm, lambda single: run_report(single, "llama", (4, 4), **options))
    assert rows["regions crossbar"]["measured"] == alone["measured"]


def test_a_comparison_has_defaults_of_its_own(run_meshrt: Run):
    code, out, _, _ = run_meshrt("bench", "experts", "--help")
    assert code == 0 and "[default: mixtral-tiny]" in " ".join(out.split())
    assert "On 12x12 cores" in out


@pytest.mark.parametrize("name", COMPARISONS)
def test_something_of_what_is_compared_by_default_fits_where_it_is_by_default(name: str):
    comparison = COMPARISONS[name]
    program = load_program(comparison.program)
    mesh = comparison.mesh or program.mesh
    assert any(
        meshrt.fit(program.name, mesh=mesh, search=False, **{**comparison.defaults, **options}).fits
        for options in alternatives(comparison, program).values()
    )


def test_one_table_with_all_that_is_measured(run_meshrt: Run):
    code, out, err, _ = run_meshrt("bench", "gemv", "--mesh", "4x4", "--k", "30", "--n", "20")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "gemv on 4 x 4 cores of wse2, real numbers"
    assert lines[1].split() == ["ktree", "K=1", "ktree", "K=2", "ktree", "K=3", "pipeline", "ring"]
    for name in (
        "longest packet", "path hops", "path stages", "path cycles", "relative to the first", "busiest link",
        "entries of 24", "memory of 48.0 KiB", "host time", "max abs error",
    ):  # fmt: skip
        assert sum(line.startswith(name) for line in lines) == 1, name


def test_json_on_standard_output_is_the_report(run_meshrt: Run):
    arguments = ("bench", "llama", "--layers", "1", "--max-new-tokens", "2", "--prompt-ids", "5,6", "--json", "-")
    code, out, err, _ = run_meshrt(*arguments, ranks=2)
    assert (code, err) == (0, "")
    comparison = json.loads(out)
    keys = (
        "schema",
        "comparison",
        "program",
        "option",
        "device",
        "mesh",
        "payload",
        "arguments",
        "alternatives",
        "host",
    )
    assert tuple(comparison) == keys
    assert (comparison["comparison"], comparison["mesh"], comparison["payload"]) == ("llama", [8, 8], "full")
    assert comparison["arguments"]["max_new_tokens"] == 2
    assert all(row["agrees"] for row in comparison["alternatives"])


def test_wrong_input_ends_a_comparison_with_code_2(run_meshrt: Run):
    code, _, err, _ = run_meshrt("bench", "gemm", "--m", "0")
    assert (code, err) == (2, "meshrt: error: --m is 0; it starts at 1\n")
