"""Every number says what it is: the kinds in reports, their schema, the printed marks, `meshrt explain`."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import jsonschema
import pytest
from gpu_runs import new_gpus, run_gpus
from lines import run_lines
from make_api import PARTS
from make_docs import GENERATED, OF, ROOT
from measure import end, run_report
from mpi_jobs import Finished
from runs import new_block, parted, run_on_arm, run_on_cores
from settings import BASE

from meshrt.emulate import emulate
from meshrt.machine import find_machine, machines
from meshrt.mesh.collectives.allreduce import allreduce, pattern
from meshrt.mesh.repeat import repeated
from meshrt.models.catalogue import find_model
from meshrt.program import load_program
from meshrt.programs.results import RESULTS, inner
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.reports import fields, kinds
from meshrt.reports.parts import hosts
from meshrt.reports.report import print_table

IDS = {"prompt_ids": "1,2,3,4,5", "max_new_tokens": 3, "ignore_eos": True}
MESH_CASES: dict[str, dict[str, Any]] = {
    "gemm": {}, "gemv": {}, "kvcache": {"tokens": 9}, "allreduce": {"size": 8}, "shift": {"tile": 2}, "llama": IDS,
    "dispatch": {},
}  # fmt: skip
# Machines on which models run: not all have to have that.
WITH_MODELS = [name for name in machines() if name == "mesh" or (ROOT / "programs" / name / "llama.py").is_file()]


@pytest.fixture(scope="module")
def valid() -> Callable[[dict[str, Any]], None]:
    """Checks a report against the schema that is shipped."""
    schema = json.loads((ROOT / "meshrt" / "schema" / "report.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    def check(report: dict[str, Any]) -> None:
        instance = json.loads(json.dumps(report))
        if not validator.is_valid(instance):  # by which machine's part, in a line: the whole has thousands
            own = [part for part in schema["anyOf"] if part["properties"]["machine"]["const"] == report["machine"]]
            assert own, f"no machine {report['machine']} in the schema"
            error = next(validator.evolve(schema=own[0]).iter_errors(instance))
            raise jsonschema.ValidationError(f"{error.json_path}: {error.message}")

    return check


def complete(report: dict[str, Any]) -> None:
    """`kinds` has every number of `measured` and of the phases, and nothing else; the result is explained."""
    want = {f"measured.{path}" for path in kinds.leaves(report["measured"])} | {"result", "host"}
    for phase in report["phases"]:
        want |= {f"phases.{phase['name']}.{path}" for path in kinds.leaves(phase)}
    assert set(report["kinds"]) == want
    for key in report["result"]:
        assert any(fnmatch.fnmatchcase(key, known_key) for known_key in RESULTS), f"{key}: a row in programs/results.py"


def extrapolated(report: dict[str, Any]) -> set[str]:
    return {path for path, kind in report["kinds"].items() if kind == fields.EXTRAPOLATED}


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_what_is_generated_is_up_to_date(path: Path) -> None:
    assert path.read_text() == GENERATED[path](), "run python tests/make_docs.py"


@pytest.mark.parametrize("machine", machines())
def test_what_is_generated_has_every_machine(machine: str) -> None:
    """The lists in make_docs.py and make_api.py are by hand."""
    kind = find_machine(machine)
    assert {OF.get(machine)} == {type(device) for device in kind.PRESETS.values()}, "tests/make_docs.py"
    names = {name for modules in PARTS.values() for of_module in modules.values() for name in of_module}
    own = get_type_hints(kind.open_machine)["return"], OF[machine]
    assert {each.__name__ for each in own} <= names, "tests/make_api.py"


# Not those that models run on, of which there is more below, and that take a folder of files.
@pytest.mark.parametrize("program", [name for name in BASE if name.split()[0] not in ("llama", "graph")])
def test_what_every_program_reports_keeps_to_the_schema(program: str, valid: Callable[..., None]) -> None:
    options, settings = parted(BASE[program] | {"@payload": True})
    report = emulate(Alone(), Board.alone(), load_program(*program.split()), options, **settings)
    assert report is not None
    valid(report)
    complete(report)


@pytest.mark.parametrize("machine", ["mesh", "neuron", "arm"])
def test_reports_of_several_runs_keep_to_the_schema(machine: str, valid: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "p").write_text("One day\nThe little dog\n")
    arguments = {"prompts": str(tmp_path / "p"), "max_new_tokens": 3, "layers": 1}
    report = emulate(Alone(), Board.alone(), load_program("llama", machine), arguments)
    assert report is not None and len(report["runs"]) == 2
    valid(report)
    complete(report)


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("name", MESH_CASES)
def test_reports_of_the_mesh_keep_to_the_schema(name: str, valid: Callable[..., None], comm: Any) -> None:
    for payload in (True, False):
        report = run_report(comm, name, (4, 4), payload=payload, **MESH_CASES[name])
        valid(report)
        complete(report)
        assert not extrapolated(report)
        assert {path for path, kind in report["kinds"].items() if kind == fields.DECLARED and "measured" in path} == {
            "measured.stages", "measured.route_entries.limit", "measured.memory_bytes.limit",
        }  # fmt: skip


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize(("name", "options"), [("llama", IDS), ("xuv", {"m": 128, "k": 128, "r": 64, "n": 512})])
def test_reports_of_neuron_cores_keep_to_the_schema(
    name: str, options: Any, valid: Callable[..., None], comm: Any
) -> None:
    for cores in (comm.size, 2):
        report = comm.bcast(run_on_cores(comm, name, cores, payload=cores == 2, **options))
        valid(report)
        complete(report)
        assert not extrapolated(report)


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize(("name", "options"), [("llama", IDS | {"flash": 2}), ("linear", {"m": 3, "k": 40, "n": 9})])
def test_reports_of_arm_cores_keep_to_the_schema(
    name: str, options: Any, valid: Callable[..., None], comm: Any
) -> None:
    for payload in (True, False):
        report = comm.bcast(run_on_arm(comm, name, 3, payload=payload, **options))
        valid(report)
        complete(report)
        assert not extrapolated(report)


def test_a_report_of_a_wafer_with_defects_keeps_to_the_schema(
    valid: Callable[..., None], run_meshrt: Callable[..., Finished]
) -> None:
    line = ("gemv", "--mesh", "6x6", "--defects", "0.05", "--spares", "2x2", "--json", "-")
    code, out, err, _ = run_meshrt("run", *line)
    assert code == 0, err
    report = json.loads(out)
    valid(report)
    complete(report)
    assert report["kinds"]["measured.wafer.hops"] == fields.COUNTED


@pytest.mark.parametrize("name", ["lowrank", "serve"])
@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
def test_reports_of_gpus_keep_to_the_schema(name: str, static: bool, valid: Callable[..., None]) -> None:
    options = IDS if name == "lowrank" else {"requests": 3, "prompt_tokens": "4", "output_tokens": "3"}
    for tp in (1, 2):
        report = run_gpus(new_gpus(tp, static=static), "llama-tiny", name, **options)
        valid(report)
        complete(report)
        assert not extrapolated(report)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("change", ["a field more", "a field less", "text for a number", "a kind that is none"])
def test_the_schema_refuses_what_is_no_report(change: str, valid: Callable[..., None], comm: Any) -> None:
    report = run_report(comm, "gemv", (2, 2), k=8, n=8)
    match change:
        case "a field more":
            report["measured"]["hopps"] = 1
        case "a field less":
            del report["measured"]["link_bytes"]["max"]
        case "text for a number":
            report["measured"]["macs"] = "12"
        case _:
            report["kinds"]["measured.hops"] = "guessed"
    with pytest.raises(jsonschema.ValidationError):
        valid(report)


# ---- extrapolated


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("bits", [None, 3])
def test_layers_that_stand_for_others_are_marked_in_their_phases(
    bits: int | None, valid: Callable[..., None], comm: Any
) -> None:
    """All that `repeated` multiplies, in prefill, re-placement and decode; the first token is counted as it is. Of a
    quantized model nothing is rebuilt in re-placement.
    """
    report = run_report(comm, "llama", (8, 8), "wse2", payload=False, layers_run=2, bits=bits, **IDS)
    valid(report)
    complete(report)
    scaled = {
        path for path, row in kinds.fields_of("mesh").items()
        if row.scaled and "wafer" not in path and path != "rebuilt"
    }  # fmt: skip
    want = {f"{stem}.{path}" for path in scaled for stem in
            ("measured", "phases.prefill", "phases.re-placement", "phases.decode")}  # fmt: skip
    want |= {f"{stem}.rebuilt" for stem in ("measured", "phases.prefill", "phases.decode") if bits is not None}
    assert extrapolated(report) == want


@pytest.mark.mpi(ranks=[1])
def test_a_sample_as_large_as_what_there_is_extrapolates_nothing(comm: Any) -> None:
    assert not extrapolated(run_report(comm, "llama", (8, 8), "wse2", payload=False, layers_run=4, **IDS))


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("system", ["waferllm", "t10", "ladder"])
def test_steps_that_stand_for_others_are_marked(system: str, comm: Any) -> None:
    report = run_report(comm, "llama", (8, 8), "wse2", payload=False, system=system, steps_run=1, layers=1, **IDS)
    assert "phases.prefill.hops" in extrapolated(report) and "phases.first token.hops" not in extrapolated(report)


@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
def test_layers_of_gpus_that_stand_for_others_are_marked(static: bool, valid: Callable[..., None]) -> None:
    report = run_gpus(new_gpus(2, payload=False, static=static), "llama-tiny", "lowrank", layers_run=1, **IDS)
    valid(report)
    complete(report)
    parts = {"measured": report["measured"]} | {f"phases.{phase['name']}": phase for phase in report["phases"]}
    scaled = {
        f"{stem}.{path}" for stem, part in parts.items() for path in kinds.leaves(part)
        if (row := kinds.find("gpu", path)) is not None and row.scaled
    }  # fmt: skip
    assert extrapolated(report) == scaled
    assert "measured.memory_bytes.max" in scaled and "measured.graph_launches" not in scaled


@pytest.mark.mpi(ranks=[1])
def test_what_a_sample_multiplies_is_what_the_table_says(comm: Any) -> None:
    """A stretch that is repeated three times moves every field that is marked as scaled, and no other."""

    def parts(times: int) -> dict[str, Any]:
        block = new_block(comm, (4, 3), "wse2", payload=False)
        tiles = block.tiles("A", (6, 6), "float16")
        with pattern(block, "ktree", "x", 1) as way, repeated(block, times):
            allreduce(block, way, block.matmul(tiles, tiles)[:, :, 0])
        return dict(end(block)["measured"])

    once, thrice = parts(1), parts(3)
    for path in kinds.leaves(once):
        single, triple = once, thrice
        for name in path.split("."):
            single, triple = single[name], triple[name]
        if path == "out_of_order.packets":  # no two of them meet here
            assert (single, triple) == (0, 0)
        else:
            assert (single != triple) == kinds.fields_of("mesh")[path].scaled, path


# ---- printed


@pytest.mark.mpi(ranks=[1])
def test_printed_tables_mark_what_was_not_counted(capsys: pytest.CaptureFixture[str], comm: Any) -> None:
    folder = find_model("llama-tiny")
    shapes = run_report(comm, "llama", (8, 8), "wse2", payload=False, layers_run=1, **IDS)
    shapes["host"] |= {"wall_seconds": 1.0}
    print_table(shapes)
    rows = capsys.readouterr().out
    for name in ("tokens '", "messages ~", "stages ~", "path cycles ~", "longest packet  ", "memory of 48.0 KiB"):
        assert f"\n{name}" in rows
    assert rows.endswith("~ scaled up from a part of the run; others counted\n")
    print_table(run_report(comm, "gemv", (4, 4)))
    rows = capsys.readouterr().out
    assert "\nstages '" in rows and "\npath cycles *" in rows and "\nhops  " in rows and "~" not in rows
    print_table(run_on_cores(comm, "llama", **IDS))
    rows = capsys.readouterr().out
    assert "\nvirtual time *" in rows and "\nHBM read  " in rows and "\ntensor engine *" in rows
    print_table(run_on_arm(comm, "llama", **IDS), verbose=True)
    rows = capsys.readouterr().out
    assert "\nvirtual time *" in rows and "\nsmmla  " in rows and "\nregisters of 32" in rows and "\nDRAM  " in rows
    print_table(run_gpus(new_gpus(2), folder, "lowrank", **IDS))
    rows = capsys.readouterr().out
    assert "\nvirtual time *" in rows and "\nmemory traffic '" in rows and "\nreduce_sum, sent by a GPU  " in rows


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """What a run says on each machine in each way."""
    ways = {"plain": [], "all": ["-v"], "csv": ["--format", "csv"], "md": ["--format", "md"]}
    run = ["run", "llama-tiny", "--layers", "1", "--max-new-tokens", "2", "--ignore-eos", "--on"]
    lines = {f"{on} {way}": [*run, on, *more] for on in WITH_MODELS for way, more in ways.items()}
    return run_lines(lines, tmp_path_factory.mktemp("lines"))


@pytest.mark.parametrize("machine", WITH_MODELS)
def test_inner_quantities_are_printed_if_they_are_asked_for(
    machine: str, printed: dict[str, tuple[int, str, str]]
) -> None:
    """As docs/start.md says: of the result and of the table; as JSON and CSV all is there in any case."""
    outcomes = {way: printed[f"{machine} {way}"] for way in ("plain", "all", "csv", "md")}
    assert all((code, err) == (0, "") for code, _, err in outcomes.values()), outcomes
    names = {
        way: {re.split(r"  +|: | [|'*^~]", line.removeprefix("| "))[0] for line in out.splitlines()}
        for way, (_, out, _) in outcomes.items()
    }
    fields = {row.row for row in kinds.fields_of(machine).values() if row.inner} | {"smmla", "fmla", "fmla_8h"}  # of *
    more = {name for name in names["all"] - names["plain"] if name in inner() or name.split(" of ")[0] in fields}
    assert "layers" in more and bool({name.split(" of ")[0] for name in more} & fields) == (machine != "mesh")
    assert not more & names["md"]
    assert outcomes["plain"][1].endswith(f"\n{len(more)} more with -v; what each is: `meshrt explain NAME`\n")
    assert outcomes["csv"][1].startswith("field,unit,kind,") and "explain" not in outcomes["all"][1]


# ---- explained


@pytest.mark.parametrize("machine", machines())
def test_every_field_is_explained(machine: str, run_explain: Callable[[str], str]) -> None:
    for path, row in kinds.fields_of(machine).items():
        for name in (path, f"measured.{path}", f"phases.some phase.{path}"):
            explanation = run_explain(name.replace("*", "tensor"))
            assert f"{path} ({machine}): {row.says}\n  unit: {row.unit}\n  kind: {row.kind}" in explanation


def test_what_is_known_of_the_host_is_explained(run_explain: Callable[[str], str], tmp_path: Path) -> None:
    works = [
        "gemm --m 16",
        "shift --steps 2",
        *(f"llama-tiny --layers 1 --max-new-tokens 2 --on {on}" for on in WITH_MODELS),
    ]
    lines = {work: ["run", *work.split(), "--quiet", "--json", "-"] for work in works}
    keys = set()
    for code, out, err in run_lines(lines, tmp_path).values():
        assert (code, err) == (0, "")
        host = json.loads(out)["host"]
        phases = host.pop("phases", [])
        keys |= {*host, *(f"phases.{name}" for phase in phases for name in phase if name != "name")}
    assert {"product_cpu_seconds", "shift_seconds", "phases.cpu_seconds", "rss_bytes"} < keys
    for key in keys:
        for query in (key, f"host.{key}"):
            assert f"{key} (host): " in run_explain(query) and "kind: host, of the computers" in run_explain(query)


def test_times_of_phases_of_several_runs_add_up() -> None:
    phase = {"name": "decode", "wall_seconds": 1.5, "cpu_seconds": 2.0}
    joined = hosts([{"wall_seconds": 2.0, "phases": [phase]}, {"wall_seconds": 3.0, "phases": [phase]}])
    assert joined == {
        "wall_seconds": 5.0,
        "phases": [{"name": "decode", "wall_seconds": 3.0, "cpu_seconds": 4.0}],
    }


def test_what_a_rank_takes_to_start_is_explained(run_explain: Callable[[str], str]) -> None:
    explanation = run_explain("startup_cpu_seconds")
    assert explanation.startswith("startup_cpu_seconds (host): that a rank had used") and "unit: CPU s" in explanation
    assert "messages (host): " in run_explain("messages") and "(host)" not in run_explain("measured.messages")


@pytest.fixture
def run_explain() -> Callable[[str], str]:
    from click.testing import CliRunner

    from meshrt.commands.explain import command

    def run(name: str) -> str:
        result = CliRunner().invoke(command, [name], catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    return run


def test_words_kinds_rows_and_parts_are_explained(run_explain: Callable[[str], str]) -> None:
    assert run_explain("Hop").startswith("hop: one router-to-router move")
    assert run_explain("colours").startswith("colour: a route's id")
    assert "hops (mesh)" in run_explain("hops") and "critical_path.hops (mesh)" in run_explain("hops")
    assert run_explain("extrapolated").startswith("extrapolated: scaled up")
    assert "link_bytes.max (mesh)" in run_explain("busiest link")
    assert "temporaries of element-wise NumPy expressions are not in it" in run_explain("memory_bytes")


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ("stages '", "stages (mesh)"),
        ("path cycles *", "critical_path.cycles (mesh)"),
        ("memory of 48.0 KiB", "memory_bytes.max (mesh)"),
        ("entries of 24", "route_entries.max (mesh)"),
        ("wall time", "wall_seconds (host)"),
        ("energy ^", "energy.mean (gpu)"),
        ("tensor engine *", "engines.*.active (neuron)"),
        ("reduce_sum, sent by a GPU", "collectives.*.bytes.max (gpu)"),
        ("fmla_8h", "instructions.* (arm)"),
        ("registers of 32", "registers.max (arm)"),
        ("result.experts.imbalance.worst", "experts (result)"),
        ("docs/decisions/README.md", "# Decisions"),
        ("first token", "first token: a phase of the mesh"),
    ],
)
def test_a_row_is_explained_as_it_is_printed(row: str, path: str, run_explain: Callable[[str], str]) -> None:
    """With the mark behind it and its limit; and what lies deeper in a result, and a page in capitals."""
    assert f"\n{path}" in "\n" + run_explain(row)


def test_an_unknown_name_is_refused_with_what_it_may_have_been(run_meshrt: Callable[..., Finished]) -> None:
    code, out, err, _ = run_meshrt("explain", "link_byte")
    assert code == 2 and not out and "did you mean link_bytes" in err
    code, out, err, _ = run_meshrt("explain", "xyzzy")
    assert code == 2 and "xyzzy" in err and "Traceback" not in err
    assert (
        run_meshrt("explain", " ")[2]
        == "meshrt: error: ' ' names nothing: give a field, a word or a page, such as hops\n"
    )


def test_a_page_that_a_message_names_is_told(run_meshrt: Callable[..., Any]) -> None:
    code, out, err, _ = run_meshrt("explain", "docs/csl.md")
    assert (code, err) == (0, "") and out.startswith("# Programs in CSL\n")
    code, out, err, _ = run_meshrt("explain", "docs/cls.md")
    assert (code, out) == (2, "") and "did you mean csl.md" in err


def test_every_page_that_the_sources_name_is_there() -> None:
    for folder in ("meshrt", "programs", "studies", "models", "launch"):
        for path in (ROOT / folder).rglob("*.py"):
            for page in re.findall(r"(?<![\w/])docs/([\w/-]+\.md)", path.read_text()):
                assert (ROOT / "docs" / page).is_file(), (path, page)
