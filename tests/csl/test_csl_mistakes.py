"""Likely mistakes on the command line: one line with the way out, on one rank, and its exit code."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from meshrt.commands.csl import command
from meshrt.csl.errors import CslError
from meshrt.csl.host.exported import argument
from meshrt.csl.language.types import TYPES
from meshrt.errors import UsageError
from tests.mpi_jobs import Finished

EXAMPLES = Path(__file__).parents[2] / "examples/csl"
SHIFT, GEMV = str(EXAMPLES / "shift/layout.csl"), str(EXAMPLES / "gemv")
GIVEN = ("--params", "n:5,width:3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "nothere.csl"), "nothere.csl is not there: a folder with a script, or a layout"),
        (("run", "nothere", "--", "bash", "run.sh"), "nothere is not there"),
        (("run", GEMV), "say how it runs, such as: meshrt csl run"),
        (("run", GEMV, "--", "nothere"), "nothere cannot be run in .*: No such file or directory; .* -- bash"),
        (("run", GEMV, *GIVEN, "--", "bash", "run.sh"), "--params, --arch, --launch and --show are for a layout"),
        (("run", GEMV, "--arch", "wse2", "--", "bash", "run.sh"), "--arch, --launch and --show are for a layout"),
        (("run", SHIFT, "--params", "n:5,width:3,n:6"), "--params n:5,width:3,n:6: n is there twice, as 5 and as 6"),
        (("run", SHIFT, *GIVEN, "--", "bash", "run.sh"), "is a layout and runs by itself"),
        (("run", SHIFT), r"layout\.csl:3: parameter width is used and was not given"),
        (("run", SHIFT, "--params", "m:5"), r"--params m: layout\.csl has n, width$"),
        (("run", SHIFT, "--params", "widht:5"), "--params widht: did you mean width"),
        (("run", SHIFT, "--params", "n"), "--params n: NAME:NUMBER is asked for"),
        (("run", SHIFT, *GIVEN, "--launch", "mian"), "no core exports a function 'mian': did you mean main"),
        (("run", SHIFT, *GIVEN, "--launch", "total"), "no core exports a function 'total': there are main$"),
        (("run", SHIFT, *GIVEN, "--launch", "main:3"), "main takes 0 arguments, the host gives 1"),
        (("run", SHIFT, *GIVEN, "--show", "main"), "no tile exports such a variable, there are mine, total$"),
        (("check", "nothere"), "nothere is no folder"),
    ],
)  # fmt: skip
def test_one_message(words: tuple[str, ...], message: str) -> None:
    ran = CliRunner().invoke(command, words)
    with pytest.raises(UsageError, match=message):
        assert ran.exception is not None
        raise ran.exception


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (70000, "i16", "f is given 70000 for a i16, which holds whole numbers of 16 bits"),
        (1.5, "u32", "f is given 1.5 for a u32, which holds whole numbers of 32 bits"),
        (float("inf"), "i8", "f is given inf for a i8, which holds whole numbers of 8 bits"),
        (7e4, "f16", "f is given 70000.0 for a f16, which holds numbers up to 65504"),
    ],
)
def test_an_argument_of_which_something_would_be_lost(value: float, kind: str, message: str) -> None:
    with pytest.raises(CslError, match=message):
        argument("f", value, TYPES[kind])


def test_an_argument_is_taken_by_its_bits() -> None:
    assert [int(argument("f", value, TYPES["i16"])) for value in (0xFFFF, -1, 3.0)] == [-1, -1, 3]
    assert argument("f", float("inf"), TYPES["f16"]) == float("inf")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", GEMV, "--", "bash", "run.sh"), "2 ranks: a folder's script is one process"),
        (("check", GEMV), "2 ranks: each program is one process; leave mpirun away"),
        (("run", SHIFT, *GIVEN, "--launch", "total"), "no core exports a function 'total'"),
    ],
)
def test_one_message_of_two_ranks(words: tuple[str, ...], message: str, run_meshrt: Callable[..., Finished]) -> None:
    ended = run_meshrt("csl", *words, ranks=2)
    assert ended.code == 2
    lines = [line for line in ended.stderr.splitlines() if line.startswith("meshrt: error")]
    assert len(lines) == 1 and message in lines[0]
    assert "Traceback" not in ended.stderr
