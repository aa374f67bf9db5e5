"""PLMR of programs in CSL: measured at several sizes, judged as our own programs are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from meshrt.commands.csl import command
from meshrt.csl.errors import CslError
from meshrt.errors import UsageError
from meshrt.ranks.console import Console
from meshrt.studies.plmr import layouts
from meshrt.studies.plmr.check import PlmrFinding
from tests.csl_programs import write
from tests.mpi_jobs import Finished

EXAMPLES = Path(__file__).parents[2] / "examples/csl"
END = "fn main() void { sys.unblock_cmd_stream(); } comptime { @export_symbol(main); }\n"
SIZES = (2, 4, 8)


class Alone:
    rank, size = 0, 1

    def allgather(self, value: Any) -> list[Any]:
        return [value]


def judged(path: Path, parameters: str, launch: str = "main", reach: Any = "next") -> PlmrFinding:
    subject = layouts.layout(str(path), parameters, (launch,), "wse3", "1", reach)
    return layouts.check_layout(Alone(), subject, SIZES, Console())


def says(finding: PlmrFinding) -> dict[str, bool | None]:
    return {letter: verdict.ok for letter, verdict in finding.verdicts.items()}


def test_a_vector_to_the_next_core_keeps_to_the_machine() -> None:
    finding = judged(EXAMPLES / "shift/layout.csl", "n:5,width:{N}")
    assert says(finding) == dict.fromkeys("PLMR", True)
    assert finding.values["entries"] == {2: 1, 4: 2, 8: 2}  # at both ends there is only one of the two
    assert finding.values["cores"] == dict.fromkeys(SIZES, 1.0)


@pytest.mark.parametrize("reach", ["next", "line"])
def test_sums_down_a_column_take_as_many_messages_as_cores(reach: str) -> None:
    finding = judged(EXAMPLES / "gemv/layout.csl", "m:5,k:3,height:{N}", "compute", reach)
    assert says(finding) == {"P": True, "L": False, "M": True, "R": True}
    assert finding.values["stages"] == {n: n - 1 for n in SIZES}
    assert finding.values["memory"] == dict.fromkeys(SIZES, 2 * (5 * 3 + 3 + 5) + 3 * 4 + 4)


def test_what_grows_with_the_mesh_breaks_its_letter(tmp_path: Path) -> None:
    """An array of 40 numbers for each core, and a colour for each; and only one core works."""
    body = "var a: [40 * width]u16; fn main() void { if (column == 0) { const d = @get_dsd(mem1d_dsd, .{"
    body += " .tensor_access = |i|{3} -> a[i] }); @mov16(d, 7); } sys.unblock_cmd_stream(); }"
    routes = """for (@range(i16, width)) |one| {
        @set_color_config(x, 0, @get_color(one), .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } }); }"""
    finding = judged(write(tmp_path, body + "comptime { @export_symbol(main); }\n", routes), "width:{N}")
    assert says(finding) == {"P": False, "L": True, "M": False, "R": False}
    assert finding.values["memory"] == {n: 80 * n for n in SIZES}
    assert finding.values["entries"] == {n: n for n in SIZES}
    assert finding.values["cores"] == {n: 1 / n for n in SIZES}


@pytest.mark.parametrize(
    ("body", "routes", "letter", "message"),
    [
        ("var a: [4000 * width]u16; comptime { @export_symbol(a_ptr, \"a\"); } var a_ptr: [*]u16 = &a;", "", "M",
         "a takes 64,000 bytes"),
        ("", """@set_color_config(x, 0, @get_color(3 * width), .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });""",
         "R", r"layout.csl:8: colour 24 is given routes, a router has 24, 0 to 23"),
    ],
)  # fmt: skip
def test_what_is_refused_breaks_its_letter(body: str, routes: str, letter: str, message: str, tmp_path: Path) -> None:
    finding = judged(write(tmp_path, body + END, routes), "width:{N}")
    assert finding.verdicts[letter].ok is False
    assert list(finding.refused) == [8]
    assert message in finding.refused[8]


def test_what_is_wrong_is_said_with_its_size(tmp_path: Path) -> None:
    layout = write(tmp_path, "comptime { @comptime_assert(width < 5); }" + END)
    with pytest.raises(CslError, match=r"at N = 8: .*core\.csl"):
        judged(layout, "width:{N}")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [("width:4", "nothing grows"), ("width:{M}", "no arithmetic"), ("width:{tile}", "tile is of our own programs")],
)
def test_parameters_that_say_nothing(parameters: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        judged(EXAMPLES / "shift/layout.csl", parameters)


@pytest.mark.parametrize("path", ["nothere.csl", "nothere"])
def test_a_file_that_is_not_there_is_said_first(path: str) -> None:
    """Before what is asked of its parameters."""
    with pytest.raises(UsageError, match=f"^{path} is not there: a layout"):
        judged(Path(path), "width:4")


def test_a_folder_is_no_layout() -> None:
    with pytest.raises(UsageError, match="is no layout"):
        judged(EXAMPLES / "shift", "width:{N}")


def test_the_command_on_ranks(tmp_path: Path, run_meshrt: Callable[..., Finished]) -> None:
    """The same bytes, and code 3 where a bound does not hold."""
    files = [tmp_path / "1", tmp_path / "2"]
    for ranks, file in enumerate(files, 1):
        argv = ["csl", "plmr", str(EXAMPLES / "gemv/layout.csl"), "--params", "m:2,k:2,height:{N}", "--json", str(file)]
        argv += ["--launch", "compute", "--sizes", "2,3,4", "--expect", "stages=2"]
        ended = run_meshrt(*argv, ranks=ranks)
        assert ended.code == 3
        assert "stages at N = 4 is 3, expected at most 2" in ended.stderr
    assert files[0].read_bytes() == files[1].read_bytes()
    document = json.loads(files[0].read_text())
    assert document["device"] == {"name": "wse3", "core_memory": 49152, "route_entries": 24}


def test_the_help() -> None:
    assert "Parallelism, latency, memory and routing" in CliRunner().invoke(command, ["plmr", "--help"]).output
