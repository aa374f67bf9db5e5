"""No setting without effect: what the rows of settings.py say moves, moves so; what is of no use is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_settings import DEVICES, HOW, NO_EFFECT, ON, PAYLOAD, SHARED
from device_settings import MACHINES as OPTIONS
from gpu_runs import new_gpus, run_gpus
from graph_folders import lay_graph
from measure import run_report
from settings import BASE, REFUSED, ROWS, RUNS, STOPS, Row
from tiers import drawn

from meshrt.arm.device import N2X8
from meshrt.commands.run import execute
from meshrt.emulate import emulate
from meshrt.errors import LimitError, UsageError
from meshrt.gpu.presets import A800
from meshrt.machine import find_machine, machines
from meshrt.mesh.devicefile import find_device
from meshrt.models.errors import ModelError
from meshrt.program import load_program, packaged_programs, settings_of
from meshrt.ranks.board import Board

TRACE = "time,prompt_tokens,output_tokens\n0.5,5,2\n0.75,9,8\n"
PROMPTS = "One day\nThe end of the day\nThere was a little girl\n"


def marks_of(program: str, row: Row) -> Any:
    """A row that several programs have in common runs on one of them in the default tier."""
    alike = [name for name, rows in ROWS.items() if row in rows]
    return () if program == drawn(f"{row.option} {row.value}", alike) else pytest.mark.all


def placed(value: Any, tmp: Path, place: str) -> Any:
    """A value with its folders."""
    return value.replace("{run}", "{tmp}/" + place).replace("{tmp}", str(tmp)) if isinstance(value, str) else value


def run(
    comm: Any, program: str, options: Mapping[str, Any], tmp: Path, place: str = "", **numbers: Any
) -> dict[str, Any]:
    """A report of a program such as "gemm mesh". Keys with @ say how it is started; `numbers` replace the device's."""
    name, machine = program.split()
    (tmp / place).mkdir(exist_ok=True)
    (tmp / "prompts").write_text(PROMPTS)
    (tmp / "trace.csv").write_text(TRACE)
    (tmp / "long.csv").write_text(TRACE.replace("9,8", "900,8"))
    if name == "graph":
        lay_graph(tmp / "graph", 20)
        lay_graph(tmp / "wide", 40)
        np.savez(tmp / "in.npz", x=np.full((3, 12), 0.3, np.float32))
    given = {key: placed(value, tmp, place) for key, value in (BASE[program] | dict(options)).items()}
    how = {key: given.pop(key) for key in [*given] if key.startswith("@")}
    payload = how.get("@payload", False)
    ways: dict[str, Any]
    if machine == "mesh":
        device: Any = replace(find_device(how.get("@device", "wse2")), **numbers)
        if "prompts" in given:  # several runs
            ways = {"mesh": how["@mesh"], "device": device, "payload": payload}
            report = emulate(comm, Board.alone(), load_program(name), given, **ways)
            assert report is not None
            return report
        return run_report(comm, name, how["@mesh"], device, payload, **given)
    if machine != "gpu":
        if numbers.get("clusters") == "slower":
            numbers["clusters"] = tuple(replace(cluster, hz=cluster.hz / 2) for cluster in N2X8.clusters)
        preset = how.get("@device", settings_of(machine)["device"].default)
        ways = {key[1:]: value for key, value in how.items() if key not in ("@device", "@payload")}
        ways |= {"device": replace(find_machine(machine).PRESETS[preset], **numbers), "payload": payload}
        report = emulate(comm, Board.alone(), load_program(name, machine), given, **ways)
        assert report is not None
        return report
    if isinstance(numbers.get(slower := f"{how.get('@link', 'nvlink')}_protocols"), str):
        numbers[slower] = tuple(replace(protocol, seconds=2 * protocol.seconds) for protocol in getattr(A800, slower))
    numbers = {"link": how["@link"]} | numbers if "@link" in how else numbers
    gpus = new_gpus(how["@tp"], payload=payload, static=how.get("@static", False), pp=how.get("@pp", 1), **numbers)
    return run_gpus(gpus, given.pop("model", "llama-tiny"), name, **given)


def metric(report: Mapping[str, Any], path: str, tmp: Path, place: str) -> Any:
    """A number of a report by its path, phases by name; whether a file is there; None where there is no such thing."""
    if path.startswith("file "):
        return Path(placed(path.removeprefix("file "), tmp, place)).exists()
    first, _, rest = path.partition(".")
    if first == "kinds":
        return report["kinds"][rest]
    at: Any = {phase["name"]: phase for phase in report["phases"]} if first == "phases" else report.get(first)
    for name in filter(None, rest.split(".")):
        at = at.get(name) if isinstance(at, Mapping) else None
    return at


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    """Reports that rows have in common, by what was run."""
    return {}


def once(reports: dict[str, Any], program: str, options: Mapping[str, Any], work: Callable[[], Any]) -> Any:
    """The report of a run that many rows have, made by the first of them. One that writes files is made by each."""
    key = repr((program, {**options}))
    if key not in reports or "{" in repr([*options.values()]):
        reports[key] = work()
    return reports[key]


def moves(row: Row, tmp: Path, measure: Callable[[str, Mapping[str, Any]], dict[str, Any]]) -> None:
    """Both runs of a row, by `measure` of a folder's name and the change, and what it says of them."""

    def measured(place: str, change: Mapping[str, Any]) -> Any:
        try:
            return metric(measure(place, change), row.metric, tmp, place)
        except (UsageError, LimitError):
            if row.relation is not (STOPS if change else RUNS):
                raise
            return "refused"

    before, after = measured("before", {}), measured("after", {row.option: row.value})
    assert row.relation.holds(before, after), f"{row.metric}: {before} -> {after}, not {row.relation.says}"


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("program", "row"),
    [
        pytest.param(program, row, id=f"{program}, {row.option}", marks=marks_of(program, row))
        for program, rows in ROWS.items()
        for row in rows
    ],
)
def test_every_option_moves_what_it_says(
    program: str, row: Row, comm: Any, reports: dict[str, Any], tmp_path: Path
) -> None:
    base = dict(row.base or {})

    def measure(place: str, change: Mapping[str, Any]) -> dict[str, Any]:
        return once(reports, program, base | change, lambda: run(comm, program, base | change, tmp_path, place))

    moves(row, tmp_path, measure)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("device", "program", "row"),
    [pytest.param(name, *pair, id=f"{name}, {pair[1].option}") for name, rows in DEVICES.items() for pair in rows],
)
def test_every_number_of_a_device_moves_what_it_says(
    device: str, program: str, row: Row, comm: Any, reports: dict[str, Any], tmp_path: Path
) -> None:
    def measure(place: str, change: Mapping[str, Any]) -> dict[str, Any]:
        if change:
            return run(comm, program, row.base or {}, tmp_path, place, **change)
        return once(reports, program, row.base or {}, lambda: run(comm, program, row.base or {}, tmp_path, place))

    moves(row, tmp_path, measure)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("machine", "row"),
    [
        pytest.param(machine, row, id=f"{machine}, {row.option}")
        for machine, rows in OPTIONS.items() for row in [*rows, *([PAYLOAD] if machine != "gpu" else [])]
    ],
)  # fmt: skip
def test_every_option_of_a_machine_moves_what_it_says(machine: str, row: Row, comm: Any, tmp_path: Path) -> None:
    """As `meshrt run` calls it, without click."""

    def measure(place: str, change: Mapping[str, Any]) -> dict[str, Any]:
        (tmp_path / place).mkdir()
        values = HOW[machine] | SHARED | dict(row.base or {}) | dict(change)
        settings = {key: placed(value, tmp_path, place) for key, value in values.items()}
        program = load_program(ON[machine].split()[0], machine)
        given = {option.name: option.default for option in program.options}
        given |= {key: value for key, value in BASE[ON[machine]].items() if not key.startswith("@")}
        execute(comm, Board.alone(), program, given, **settings)
        report: dict[str, Any] = json.loads(Path(settings["json_path"]).read_text())
        return report

    moves(row, tmp_path, measure)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(("program", "options", "message"), REFUSED)
def test_what_a_run_has_no_use_for_is_refused(
    program: str, options: dict[str, Any], message: str, comm: Any, tmp_path: Path
) -> None:
    with pytest.raises((UsageError, ModelError), match=message):
        run(comm, program, options, tmp_path)


def test_there_is_a_row_for_every_option_of_every_program() -> None:
    programs = {}
    for name in packaged_programs():
        for machine in machines():
            try:
                programs[f"{name} {machine}"] = load_program(name, machine)
            except UsageError:
                continue  # it is not for that machine
    assert set(programs) == set(ROWS) == set(BASE)
    for name, program in programs.items():
        assert sorted(option.name for option in program.options) == sorted({row.option for row in ROWS[name]}), name


@pytest.mark.parametrize("machine", machines())
def test_there_is_a_row_for_every_number_of_every_device(machine: str) -> None:
    presets = find_machine(machine).PRESETS
    numbers = [
        sorted(field.name for field in fields(presets[name]) if field.name not in NO_EFFECT)
        for name in presets if name in DEVICES
    ]  # fmt: skip
    rows = [sorted(row.option for _, row in DEVICES[name]) for name in presets if name in DEVICES]
    assert numbers == rows and len(rows) == 1, f"rows in tests/device_settings.py, of one of {', '.join(presets)}"


@pytest.mark.parametrize("machine", machines())
def test_there_is_a_row_for_every_option_of_every_machine(machine: str) -> None:
    assert machine in ON, "a program for the rows of its options, in tests/device_settings.py"
    assert sorted(settings_of(machine)) == sorted(HOW[machine]) == sorted(row.option for row in OPTIONS[machine])
