"""The command line: what it lists, its help, and the report as JSON."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from meshrt import __version__
from meshrt.cli import COMMANDS, cli
from meshrt.commands import shared
from meshrt.errors import UsageError
from meshrt.mesh.presets import PRESETS
from meshrt.ranks import host

Run = Callable[..., Any]
MEASURED = {
    "messages", "hops", "max_hops", "stages", "critical_path", "link_bytes", "route_entries", "memory_bytes", "macs",
    "cores", "cores_used", "macs_16", "ramp_bytes", "out_of_order", "adds", "operand_bytes", "energy",
}  # fmt: skip
INNER = {
    "critical_path": {"hops", "stages", "cycles", "seconds"},
    "energy": {"low", "mean", "high", "links", "memory", "compute", "idle"},
    "link_bytes": {"total", "max"},
    "ramp_bytes": {"total", "max"},
    "route_entries": {"max", "limit"},
    "memory_bytes": {"max", "limit"},
    "out_of_order": {"packets", "longest_wait"},
}
REPORT = {
    "schema", "machine", "program", "arguments", "device", "mesh", "result", "measured", "phases", "host", "kinds"
}  # fmt: skip


def say(run_meshrt: Run, *args: str, **options: Any) -> str:
    """Standard output of a run that went well and had nothing to say on standard error."""
    code, out, err, _ = run_meshrt(*args, **options)
    assert code == 0, err
    assert err == ""
    assert isinstance(out, str)
    return out


def test_list_names_programs_and_models_with_a_line_each(run_meshrt: Run):
    lines = say(run_meshrt, "list").splitlines()
    names = [line.split()[0] for line in lines]
    assert {"gemm", "gemv", "kvcache", "llama", "llama-tiny"} <= set(names)
    assert len(set(names)) == len(names)
    assert all(len(line.split()) > 3 for line in lines), "a name and what it does"


def test_devices_shows_every_number_and_where_it_is_from(run_meshrt: Run):
    out = say(run_meshrt, "devices")
    for device in PRESETS.values():
        assert f"\n{device.name}\n" in f"\n{out}"
        assert all(source in out for source in device.sources)
    rows = [line.split() for line in out.splitlines()]
    for row in (["core_memory", "49152"], ["route_entries", "24"], ["clock_hz", "1100000000.0"]):
        assert row in rows


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_of_run_names_programs_models_and_examples(flag: str, run_meshrt: Run):
    out = say(run_meshrt, "run", flag)
    for word in ("PROGRAM|MODEL|FILE.py", "gemm", "gemv", "kvcache", "llama", "llama-tiny", "mpirun -n 64"):
        assert word in out


@pytest.mark.parametrize(
    ("program", "own"),
    [
        ("gemm", ["--algorithm", "--m", "--k", "--n", "--transpose-b", "--dtype", "--seed"]),
        ("gemv", ["--allreduce", "--phases", "--groups", "--k", "--n", "--dtype", "--seed"]),
        ("kvcache", ["--policy", "--tokens", "--dtype"]),
        ("llama", ["--model", "--prompt", "--prompt-ids", "--max-new-tokens", "--kv", "--logits", "--dtype", "--seed"]),
        ("llama-tiny", ["--prompt", "--prompt-ids", "--max-new-tokens", "--kv", "--logits"]),
    ],
)
def test_help_of_a_program_has_its_options_and_the_shared_ones(program: str, own: list[str], run_meshrt: Run):
    out = say(run_meshrt, "run", program, "--help")
    options = {word.strip(",") for line in out.splitlines() for word in line.split()[:2] if word.startswith("--")}
    shared = ["--mesh", "--device", "--core-memory", "--route-entries", "--payload", "--json", "--quiet"]
    assert {*own, *shared} <= options
    assert ("--model" in options) == (program == "llama")


def test_options_are_in_groups_that_have_no_name_that_is_gone(run_meshrt: Run):
    """Each option of a program stands in one group; what a group names is an option of some program or machine."""
    from meshrt.commands.sections import OF, SECTIONS
    from meshrt.machine import machines
    from meshrt.program import load_program, packaged_programs, settings_of

    page = say(run_meshrt, "run", "llama", "--help")
    titles = [line[:-1] for line in page.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == [title for title in SECTIONS if title in titles] and len(titles) == 9
    assert titles[0] == "Problem" and titles[-1] == "Output"
    output = page.split("Output:\n")[1]
    assert all(f"--{name}" in output for name in ("json", "format", "html", "help", "maps")) and "--mesh" not in output
    names = {
        "json_path",
        "form",
        "html",
        "expect",
        "quiet",
        "all_rows",
        "text",
        "tuned",
        "payload",
        "search",
        "tolerance",
        "h",
        "help",
    }
    names |= {name for machine in machines() for name in settings_of(machine)}
    for name in packaged_programs():
        for machine in machines():
            try:
                names |= {option.name for option in load_program(name, machine).options}
            except UsageError:
                continue  # not on this machine
    assert OF.keys() - names == set()


GROUPS = [(), ("run",), ("chat",), ("bench",), ("reproduce",)]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("ranks", "group"),
    [
        *((1, group) for group in GROUPS),
        (2, ()),
        *(pytest.param(2, group, marks=pytest.mark.all) for group in GROUPS[1:]),
    ],
)
def test_a_group_without_a_command_shows_its_help(ranks: int, group: tuple[str, ...], run_meshrt: Run):
    code, out, err, _ = run_meshrt(*group, ranks=ranks)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: ") and err.count("Usage: ") == 1
    assert err.strip() == run_meshrt(*group, "--help").stdout.strip()


def test_version(run_meshrt: Run):
    first, second = say(run_meshrt, "--version").splitlines()
    assert first == f"meshrt, version {__version__}"
    assert second.startswith(f"Python {platform.python_version()}, NumPy {np.__version__}, {host.library()}")


def test_what_one_process_does_rank_0_does_for_all(run_meshrt: Run):
    alone = run_meshrt("list")
    both = run_meshrt("list", ranks=2)
    assert (both.code, both.stdout, both.stderr) == (0, alone.stdout, "")
    code, out, err, _ = run_meshrt("explain", "nothing", ranks=2)
    assert (code, out, err.count("\n")) == (2, "", 1)


def assert_measured(part: dict[str, Any], extra: frozenset[str] = frozenset()) -> None:
    assert set(part) == MEASURED | extra
    for key, keys in INNER.items():
        assert set(part[key]) == keys
    for key in MEASURED - set(INNER):
        assert isinstance(part[key], int)


@pytest.mark.parametrize(
    ("ranks", "quiet"), [(1, ()), (1, ("--quiet",)), (2, ()), pytest.param(2, ("--quiet",), marks=pytest.mark.all)]
)
def test_json_on_standard_output_is_json_and_nothing_else(ranks: int, quiet: tuple[str, ...], run_meshrt: Run):
    arguments = ("--prompt", "Once", "--max-new-tokens", "3", "--mesh", "8x8")
    report = json.loads(say(run_meshrt, "run", "llama-tiny", *arguments, "--json", "-", *quiet, ranks=ranks))
    assert set(report) == REPORT
    assert (report["schema"], report["program"], report["mesh"]) == (1, "llama", [8, 8])
    assert report["arguments"]["model"] == "llama-tiny" and report["arguments"]["max_new_tokens"] == 3
    device = PRESETS["wse2"]
    numbers = {key: getattr(device, key) for key in report["device"]}
    assert report["device"] == {
        key: [*number] if isinstance(number, tuple) else number for key, number in numbers.items()
    }
    assert {"name", "alpha", "beta", "core_memory", "route_entries", "link_bytes_per_cycle"} <= set(report["device"])
    assert_measured(report["measured"])
    assert [phase["name"] for phase in report["phases"]] == ["prefill", "re-placement", "first token", "decode"]
    for phase in report["phases"]:
        assert_measured(phase, frozenset({"name", "tokens"} & set(phase)))
    for key in ("messages", "hops", "stages", "macs"):
        assert sum(phase[key] for phase in report["phases"]) <= report["measured"][key]
    assert {"ranks", "wall_seconds", "mpi", "messages", "packets", "bytes"} <= set(report["host"])
    assert report["host"]["ranks"] == ranks
    assert {"prompt_ids", "token_ids", "text"} <= set(report["result"])
    assert len(report["result"]["token_ids"]) == 3


def test_limits_and_device_are_those_of_the_options(run_meshrt: Run):
    options = ("--device", "ideal", "--core-memory", "20000", "--route-entries", "13", "--mesh", "5x3")
    report = json.loads(say(run_meshrt, "run", "gemm", "--m", "9", "--k", "8", "--n", "7", *options, "--json", "-"))
    assert report["mesh"] == [5, 3]
    assert report["measured"]["memory_bytes"]["limit"] == report["device"]["core_memory"] == 20000
    assert report["measured"]["route_entries"]["limit"] == report["device"]["route_entries"] == 13
    assert {"max_abs_error", "max_rel_error"} <= set(report["result"])


def test_a_device_without_limits_has_none_in_the_report(run_meshrt: Run):
    report = json.loads(say(run_meshrt, "run", "gemv", "--device", "ideal", "--json", "-"))
    assert report["measured"]["memory_bytes"]["limit"] is None
    assert report["measured"]["route_entries"]["limit"] is None
    assert {"max_abs_error", "max_rel_error"} <= set(report["result"])


def test_what_the_doctor_found_as_json(run_meshrt: Run, tmp_path: Path):
    """On standard output without a word more; in a file beside the lines."""
    for words in (("--json",), ("--json", "-")):
        assert json.loads(say(run_meshrt, "doctor", *words))["exit_code"] == 0
    assert say(run_meshrt, "doctor", "--json", str(tmp_path / "found.json")).startswith("ok    Python")
    assert json.loads((tmp_path / "found.json").read_text())["exit_code"] == 0
    code, out, err, _ = run_meshrt("doctor", "--json", str(tmp_path / "none" / "x"))
    assert (code, out) == (2, "") and "there is no folder" in err


@pytest.mark.parametrize("ranks", [1, 3])
def test_quiet_is_silent_and_writes_the_file(ranks: int, run_meshrt: Run, tmp_path: Path):
    path = tmp_path / "report.json"
    assert (
        say(
            run_meshrt,
            "run",
            "gemm",
            "--m",
            "9",
            "--k",
            "9",
            "--n",
            "9",
            "--mesh",
            "3x3",
            "--quiet",
            "--json",
            str(path),
            ranks=ranks,
        )
        == ""
    )
    assert set(json.loads(path.read_text())) == REPORT
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("ranks", [1, 3])
def test_rank_0_alone_prints_the_result_and_a_table(ranks: int, run_meshrt: Run):
    out = say(run_meshrt, "run", "kvcache", "--mesh", "3x3", ranks=ranks)
    lines = out.splitlines()
    assert lines.count("in_order: True") == 1
    assert sum(line.split() == ["fill", "total"] for line in lines) == 1
    assert sum(line.startswith("messages") for line in lines) == 1
    assert f"kvcache on 3 x 3 cores of wse2, {ranks} rank" in out
    assert "\r" not in out and "\x1b" not in out


def test_payload_none_runs_and_counts(run_meshrt: Run):
    arguments = ("run", "gemm", "--mesh", "6x4", "--m", "50", "--k", "60", "--n", "70", "--json", "-")
    full, none = (json.loads(say(run_meshrt, *arguments, "--payload", payload)) for payload in ("full", "none"))
    assert none["measured"] == full["measured"]


def test_the_logits_are_written_for_every_position(run_meshrt: Run, tmp_path: Path):
    """Of each prompt token, and of every generated one that was fed back: not the last."""
    import numpy as np

    path = tmp_path / "logits.npy"
    arguments = ("--prompt-ids", "5,6,7,8", "--max-new-tokens", "3", "--ignore-eos", "--json", "-")
    report = json.loads(say(run_meshrt, "run", "llama-tiny", *arguments, "--logits", str(path)))
    logits = np.load(path)
    assert logits.dtype == np.float32 and logits.shape[0] == 4 + 2
    assert logits[3:].argmax(axis=1).tolist() == report["result"]["token_ids"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [(("gemm", "--help"), {"shared", "run", "sections"}), (("shift", "--mesh", "2x2", "--quiet"), {"shared", "run"})],
    ids=["help", "run"],
)
def test_a_rank_imports_no_command_but_its_own(arguments: tuple[str, ...], parts: set[str]):
    """Start-up is paid by every rank."""
    end = "atexit.register(lambda: print(*[name for name in sys.modules if name.startswith('meshrt.commands.')]))"
    code = f"import atexit, sys; from meshrt.cli import main; {end}; sys.argv[1:] = {['run', *arguments]!r}; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.splitlines()[-1].split()) == {f"meshrt.commands.{name}" for name in parts}


def test_every_command_has_its_file_and_every_file_its_command():
    files = {path.stem for path in Path(shared.__file__).parent.glob("*.py")}
    parts = {"__init__", "shared", "sections", "figures"}  # of all commands, of their help, and of bench
    assert parts <= files and files - parts == set(COMMANDS.values())
    for name in COMMANDS:
        assert cli.get_command(click.Context(cli), name).name == name  # as usage lines have it


def test_an_answer_is_printed_once_also_a_short_one(run_meshrt: Run) -> None:
    out = run_meshrt("run", "llama-tiny", "--max-new-tokens", "2").stdout
    assert out.startswith("Once upon a time, a\n") and "text:" not in out
