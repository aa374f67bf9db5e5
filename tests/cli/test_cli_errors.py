"""Whatever goes wrong: an exit code, one message, and no traceback for what the user can mend."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from lines import run_lines
from mpi_jobs import Finished, run_ranks

from meshrt.models.catalogue import find_model

Run = Callable[..., Any]
SHORT = ("--max-new-tokens", "1", "--quiet")


def assert_message(finished: Any, code: int, *words: str) -> None:
    """The exit code, and on standard error one `meshrt:` message with these words and no traceback.

    Where several ranks fail in words of their own, one of them speaks, and says in a second line how many more failed.
    """
    assert finished.code == code, finished.stderr
    lines = [line for line in finished.stderr.splitlines() if "meshrt:" in line]
    assert len([line for line in lines if "failed as well" not in line]) == 1, finished.stderr
    assert len(lines) <= 2, finished.stderr
    assert "Traceback" not in finished.stderr
    for word in words:
        assert word in finished.stderr
    assert finished.stdout == ""


# -------------------------------------------------------------------------------------------- limits of the machine


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.all)])
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("name", "allocation"), [("gemm", "'A'"), ("gemv", "'B'"), ("kvcache", "'KV cache'"), ("llama-tiny", "weight'")]
)
def test_over_budget_memory_names_core_allocation_and_limit(name: str, allocation: str, ranks: int, run_meshrt: Run):
    finished = run_meshrt("run", name, "--core-memory", "100", "--quiet", ranks=ranks)
    assert_message(finished, 3, "core (", allocation, "asks for", "in use, the limit is 100", "--core-memory")
    assert ranks == 1 or " on rank " in finished.stderr


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.all)])
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["gemm", "gemv", "llama-tiny"])
def test_a_full_route_table_names_core_needed_and_limit(name: str, ranks: int, run_meshrt: Run):
    finished = run_meshrt("run", name, "--route-entries", "4", "--quiet", ranks=ranks)
    assert_message(finished, 3, "--route-entries")
    assert re.search(r"core \(\d, \d\) needs ([5-9]|1\d) route entries, the limit is 4 ", finished.stderr)


# ------------------------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize("argv", [["list"], ["run", "gemm"], ["bench", "clock", "--cores", "8"]], ids=str)
def test_a_reader_that_has_gone_is_no_bug(argv: list[str]):
    """As with `meshrt list | head -1`, whoever notices: Python, click or rich."""
    with Popen([sys.executable, "-m", "meshrt.cli", *argv], stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


# A stream that is always full is a device of Linux; elsewhere a disk would have to be filled.
@pytest.mark.sample(2)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has /dev/full, a stream that takes nothing")
@pytest.mark.parametrize("argv", [["list"], ["run", "gemm"], ["run", "xuv", "--json", "-"], ["run", "-h"]], ids=str)
def test_output_that_finds_no_room_is_no_bug(argv: list[str]):
    command = [sys.executable, "-m", "meshrt.cli", *argv]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=PIPE, text=True)
    expected = "meshrt: error: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, expected)


@pytest.mark.sample(2)
@pytest.mark.parametrize("closed", ["1>&-", "2>&-"])
@pytest.mark.parametrize(("size", "code"), [("8", 0), ("0", 2)])
def test_streams_that_are_closed_change_no_exit_code(closed: str, size: str, code: int):
    line = f"{sys.executable} -m meshrt.cli run gemm --m {size} {closed}"
    assert subprocess.run(["sh", "-c", line], capture_output=True).returncode == code


WRONG: list[tuple[list[str], list[str]]] = [
    (["nothing"], ["'nothing'", "meshrt list"]),
    (["missing.py"], ["missing.py"]),
    (["gemm", "--device", "abacus"], ["abacus", "wse2", "ideal"]),
    (["gemm", "--mesh", "0x4"], ["'0x4'", "WIDTHxHEIGHT"]),
    (["gemm", "--mesh", "4"], ["'4'", "WIDTHxHEIGHT"]),
    (["gemm", "--mesh=-3x4"], ["'-3x4'", "WIDTHxHEIGHT"]),
    (["gemm", "--mesh", "751x2"], ["751", "750"]),
    (["gemm", "--core-memory", "0"], ["--core-memory"]),
    (["gemm", "--route-entries", "0"], ["--route-entries"]),
    (["gemm", "--route-entries", "257"], ["--route-entries"]),
    (["gemm", "--payload", "some"], ["--payload"]),
    (["gemm", "--m", "0"], ["--m"]),
    (["gemm", "--k", "-1"], ["--k"]),
    (["gemm", "--n", "many"], ["--n"]),
    (["gemm", "--algorithm", "guess"], ["--algorithm", "meshgemm"]),
    (["gemm", "--dtype", "int3"], ["--dtype", "bfloat16"]),
    (["gemm", "--seed", "-1"], ["--seed"]),
    (["gemm", "--no-such-option"], ["--no-such-option"]),
    (["gemm", "stray"], ["stray"]),
    (["gemv", "--phases", "0"], ["--phases is 0; it is 1 to 64"]),
    (["gemv", "--groups", "0"], ["groups"]),
    (["gemv", "--groups", "9"], ["groups", "8"]),
    (["gemv", "--n", "0"], ["--n"]),
    (["kvcache", "--tokens", "0"], ["--tokens"]),
    (["kvcache", "--heads", "-2"], ["--heads"]),
    (["kvcache", "--policy", "hoard"], ["--policy", "shift"]),
    (["llama-tiny", "--max-new-tokens", "0"], ["--max-new-tokens"]),
    (["allreduce", "--phases", "0"], ["--phases is 0; it is 1 to 64"]),
    (["llama-tiny", "--phases", "0"], ["--phases is 0; it is 1 to 64"]),
    (["llama-tiny", "--decode-phases", "0"], ["--decode-phases is 0; it is 1 to 64"]),
    (["llama-tiny", "--head-groups", "0"], ["--head-groups is 0; it starts at 1"]),
    (["llama-tiny", "--regions", "0"], ["--regions is 0; it starts at 1"]),
    (["llama-tiny", "--decode-regions", "0"], ["--decode-regions is 0; it starts at 1"]),
    (["llama-tiny", "--ratio", "1"], ["--ratio is 1.0; it is at least 0 and below 1"]),
    (["gemm", "--defects", "0.1", "--defects-seed", "-1"], ["--defects-seed is -1; it starts at 0"]),
    (["llama-tiny", "--temperature", "-1"], ["--temperature is -1.0; it is at least 0 and below inf"]),
    (["llama-tiny", "--top-p", "0"], ["--top-p is 0.0; it is above 0 and 1 at most"]),
    (["llama-tiny", "--top-k", "-1"], ["--top-k is -1; it starts at 0"]),
    (["llama-tiny", "--temperature", "1", "--seed", "-1"], ["--seed is -1; it starts at 0"]),
    (["llama-tiny", "--prompt", ""], ["prompt is empty", "--prompt"]),
    (["llama-tiny", "--prompt-ids", ""], ["--prompt-ids", "1,2,3"]),
    (["llama-tiny", "--prompt-ids", "1,two"], ["--prompt-ids", "1,two"]),
    (["llama-tiny", "--prompt-ids", "1,100000"], ["100000", "vocabulary"]),
    (["llama-tiny", "--prompt-ids", "1,-5"], ["-5", "vocabulary"]),
    (["llama-tiny", "--prompt", "a", "--prompt-ids", "1"], ["--prompt", "--prompt-ids"]),
    (["llama-tiny", "--prompt-ids", ",".join(["7"] * 9000)], ["9000 prompt tokens", "shorten"]),
    (["llama-tiny", "--max-new-tokens", "1000000"], ["1000000", "positions"]),
    (["llama-tiny", "--model", "llama-tiny"], ["--model"]),
    (["llama", "--model", "no-such-model"], ["no-such-model", "llama-tiny"]),
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """What becomes of all lines of WRONG."""
    return run_lines({str(line): ["run", *line] for line, _ in WRONG}, tmp_path_factory.mktemp("lines"))


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=lambda value: " ".join(value)[:40])
def test_wrong_usage_is_told_in_one_message(
    arguments: list[str], words: list[str], outcomes: dict[str, tuple[int, str, str]]
):
    assert_message(Finished(*outcomes[str(arguments)], 0.0), 2, *words)


FITS_NOT = ("run", "gemm", "--core-memory", "100", "--quiet")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("run", "gemm", "--quiet"), 0), (("run", "nothing"), 2), (("run", "gemm", "--m", "0"), 2), (FITS_NOT, 3)],
    ids=str,
)
def test_a_process_ends_with_the_code(arguments: tuple[str, ...], code: int):
    """The others of these are among many lines of one process, or in forks; a user starts one."""
    finished = run_ranks([sys.executable, "-m", "meshrt.cli", *arguments])
    assert finished.code == code
    assert finished.stderr.count("\n") == finished.stderr.count("meshrt: ") == bool(code)


@pytest.mark.sample(2)
@pytest.mark.parametrize("arguments", [["gemm", "--m", "0"], ["gemm", "--no-such-option"], ["nothing"]], ids=" ".join)
def test_wrong_usage_on_several_ranks_is_told_once(arguments: list[str], run_meshrt: Run):
    assert_message(run_meshrt("run", *arguments, ranks=3), 2)


def test_ranks_with_other_command_lines_are_told_so() -> None:
    """Such as in `mpirun -n 1 A : -n 1 B`: what was computed was of both, and reported as rank 0's."""
    rank = "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"
    command = f"exec {sys.executable} -m meshrt.cli run shift --mesh 2x2 --quiet --steps $(({rank} + 1))"
    finished = run_ranks(["sh", "-c", command], 2)
    assert_message(finished, 2, "steps is 2 on rank 1 and 1 on rank 0: start all ranks with the same command line")


@pytest.mark.sample(2)
@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["run", "gemm", "-h"], ["bench", "host", "-h"]])
def test_help_for_several_ranks_is_shown_once(arguments: list[str], run_meshrt: Run):
    finished = run_meshrt(*arguments, ranks=3)
    assert finished.code == 0 and finished.stderr == ""
    assert finished.stdout.count("Usage: ") == 1 and finished.stdout.count("Show this message") == 1


@pytest.mark.parametrize(
    "arguments",
    [["compress", "llama-tiny", "--ratio", "0.2", "--out", "new"], ["submit", "slurm", "-n", "2", "--", "run", "gemm"]],
    ids=" ".join,
)
def test_what_one_process_does_is_not_done_by_each_of_several_ranks(arguments: list[str], run_meshrt: Run):
    assert_message(run_meshrt(*arguments, ranks=2), 2, "2 ranks: this", "leave mpirun away")
    assert not Path("new").exists()


def test_ranks_that_do_not_tile_the_cores_that_decode_are_told_which_option_sets_them(run_meshrt: Run):
    finished = run_meshrt("run", "llama-tiny", "--mesh", "3x2", "--decode-mesh", "2x2", ranks=3)
    assert_message(finished, 2, "3 ranks do not tile a 2 x 2 mesh", "set --decode-mesh")


@pytest.mark.parametrize(
    ("ranks", "width", "height"),
    [(3, 2, 2), *(pytest.param(*row, marks=pytest.mark.all) for row in ((5, 3, 3), (6, 5, 1)))],
)
def test_ranks_that_do_not_tile_the_mesh_are_told_which_numbers_do(
    ranks: int, width: int, height: int, run_meshrt: Run
):
    finished = run_meshrt("run", "gemm", "--mesh", f"{width}x{height}", ranks=ranks)
    assert_message(finished, 2, f"{ranks} ranks do not tile a {width} x {height} mesh")
    listed = re.search(r"; ([\d, ]+) do: start that many, or set --mesh", finished.stderr)
    assert listed is not None
    tilings = {columns * rows for columns in range(1, width + 1) for rows in range(1, height + 1)}
    assert [int(count) for count in listed[1].split(", ")] == sorted(tilings)


# ------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("option", ["--json", "--logits"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_folder_that_is_not_there_is_found_before_the_run(option: str, ranks: int, run_meshrt: Run, tmp_path: Path):
    path = str(tmp_path / "nowhere" / "file")
    finished = run_meshrt("run", "llama-tiny", option, path, "--max-new-tokens", "1000", ranks=ranks)
    assert_message(finished, 2, f"{option} {path}", "there is no folder")


@pytest.mark.parametrize("option", ["--json", "--logits"])
def test_a_path_that_is_a_folder_is_told(option: str, run_meshrt: Run, tmp_path: Path):
    path = tmp_path / "folder"
    path.mkdir()
    assert_message(run_meshrt("run", "llama-tiny", option, str(path), *SHORT), 2, option, str(path))
    assert list(tmp_path.iterdir()) == [path] and not list(path.iterdir())


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that even root cannot write to")
@pytest.mark.parametrize("option", ["--json", "--logits"])
def test_a_folder_that_cannot_be_written_is_told(option: str, run_meshrt: Run):
    assert_message(run_meshrt("run", "llama-tiny", option, "/proc/report", *SHORT), 2, option, "/proc")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the packaged model, to be broken."""
    return Path(shutil.copytree(find_model("llama-tiny"), tmp_path / "model"))


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_truncated_checkpoint_is_told(ranks: int, run_meshrt: Run, model: Path):
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1000)
    finished = run_meshrt("run", "llama", "--model", str(model), *SHORT, "--mesh", "6x6", ranks=ranks)
    assert_message(finished, 2, "model.safetensors")


def test_a_checkpoint_without_weights_is_told(run_meshrt: Run, model: Path):
    (model / "model.safetensors").unlink()
    assert_message(run_meshrt("run", "llama", "--model", str(model), *SHORT), 2, str(model), "safetensors")


def test_a_folder_without_a_configuration_is_told(run_meshrt: Run, model: Path):
    (model / "config.json").unlink()
    assert_message(run_meshrt("run", "llama", "--model", str(model), *SHORT), 2, "config.json")


def test_a_configuration_that_is_no_json_is_told(run_meshrt: Run, model: Path):
    (model / "config.json").write_text("{")
    assert_message(run_meshrt("run", "llama", "--model", str(model), *SHORT), 2, "config.json")


def test_weights_that_do_not_fit_the_configuration_are_told(run_meshrt: Run, model: Path):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": config["num_hidden_layers"] + 1}))
    assert_message(run_meshrt("run", "llama", "--model", str(model), *SHORT), 2, "layers")


@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_text_for_a_model_without_a_tokenizer_is_told(ranks: int, run_meshrt: Run, model: Path):
    (model / "tokenizer.json").unlink()
    finished = run_meshrt("run", "llama", "--model", str(model), "--prompt", "a", *SHORT, ranks=ranks)
    assert_message(finished, 2, "tokenizer.json")
    ids = run_meshrt("run", "llama", "--model", str(model), "--prompt-ids", "5,6", *SHORT, ranks=ranks)
    assert ids.code == 0, ids.stderr


# ----------------------------------------------------------------------------------------------- a user's own program


@pytest.fixture
def run_program(run_meshrt: Run, tmp_path: Path) -> Run:
    """`run_program(source, *args, ranks=, env=)` runs a user's own program file."""

    def run(source: str, *args: str, **options: Any) -> Any:
        path = tmp_path / "mine.py"
        path.write_text(source)
        return run_meshrt("run", str(path), *args, **options)

    return run


HEAD = """
import os, signal
import numpy as np
from meshrt.mesh.wires import fabric, routes
from meshrt.errors import UsageError
from meshrt.mesh.wires.tables import installed

MESH = (4, 2)

"""
RUNS = (
    HEAD
    + '''
def run(block, *, times: int = 2):
    """Tiles go round a ring."""
    tiles = np.full((*block.shape, 3), block.mesh.rank, np.float32)
    with installed(block, "x", routes.ring) as ring:
        for _ in range(times):
            tiles = fabric.transfer(block, ring, tiles)
    return {"times": times}
'''
)


@pytest.mark.parametrize("ranks", [1, 4, *(pytest.param(ranks, marks=pytest.mark.all) for ranks in (2, 8))])
def test_a_users_program_runs_on_any_ranks(ranks: int, run_program: Run):
    code, out, err, _ = run_program(RUNS, "--times", "3", "--json", "-", ranks=ranks)
    assert code == 0, err
    report = json.loads(out)
    assert (report["program"], report["arguments"], report["result"]) == ("mine", {"times": 3}, {"times": 3})
    # On each of two rows: three times three tiles one hop east, and one three hops back.
    assert report["measured"]["hops"] == 2 * 3 * (3 + 3)
    assert report["mesh"] == [4, 2] and report["host"]["ranks"] == ranks


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("MESH = (2, 2)\n", ["mine", "run(block"]),
        ("def run(block:\n", ["mine.py", "line 1"]),
        (HEAD + "def run(block, *, size: list = ()): pass\n", ["size", "int, float, str"]),
        (HEAD + "def run(block, *, size: int): pass\n", ["size", "default"]),
        (HEAD + "def run(block):\n    raise UsageError('--size is 7; it has to be even')\n", ["--size is 7"]),
    ],
    ids=["no run", "syntax", "kind", "no default", "usage"],
)
def test_a_file_that_is_no_program_is_told(source: str, words: list[str], run_program: Run):
    assert_message(run_program(source), 2, *words)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("[1]", ["mine.py: run returns [1]", "dictionary"]),
        ("{'sum': block}", ["mine.py: the result's 'sum' cannot be written as JSON", "a Block"]),
    ],
)
def test_a_result_that_is_none_is_the_files_mistake(result: str, words: list[str], run_program: Run):
    assert_message(run_program(f"def run(block):\n    return {result}\n"), 2, *words)


def test_a_program_may_have_no_result(run_program: Run):
    done = run_program("def run(block):\n    pass\n")
    assert (done.code, done.stderr) == (0, "") and "mine on 1 x 1 cores" in done.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_numpys_numbers_are_a_result(ranks: int, run_program: Run):
    """Only rank 0's result is the report's: the others may return what they like."""
    source = "import numpy as np\nMESH = (2, 1)\ndef run(block):\n    if block.control.rank == 0:\n"
    source += "        return {'sum': np.float32(1.5), 'all': np.arange(3), 'some': [np.int64(2)]}\n"
    done = run_program(source, "--json", "-", ranks=ranks)
    assert (done.code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["result"] == {"sum": 1.5, "all": [0, 1, 2], "some": [2]}


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.all)])
@pytest.mark.parametrize("where", ["", "if block.mesh.rank == block.control.size - 1: "], ids=["all", "last"])
def test_an_exception_in_a_users_program_ends_all_ranks(where: str, ranks: int, run_program: Run):
    """With its line, once: that is what its author needs."""
    source = HEAD + f"def run(block):\n    {where}raise ZeroDivisionError('seven')\n    block.control.allreduce(1)\n"
    finished = run_program(source, ranks=ranks)
    assert finished.code == 1
    assert "Traceback" not in finished.stderr
    assert finished.stderr.count("meshrt: error") == 1
    assert "mine.py, line 11: ZeroDivisionError: seven\n    " in finished.stderr
    assert ranks == 1 or not where or f"on rank {ranks - 1} of {ranks}" in finished.stderr
    assert finished.stdout == ""


DIVERGING = (
    HEAD
    + """
def run(block):
    tiles = np.zeros((*block.shape, 3), np.float32)
    with (
        installed(block, "x", routes.chain(4)) as east,
        installed(block, "x", routes.chain(4, -1)) as west,
    ):
        fabric.transfer(block, east, tiles)
        fabric.transfer(block, west, tiles)
        fabric.transfer(block, east if block.mesh.rank == 1 else west, tiles)
"""
)


def test_ranks_that_diverge_are_ended_with_the_transfer_and_the_neighbour(run_program: Run):
    finished = run_program(DIVERGING, "--mesh", "4x1", ranks=4, env={"MESHRT_WATCHDOG_SECONDS": "2"}, timeout=90)
    assert_message(finished, 124, "deadlock")
    # Rank 1 waits for what rank 0 has not sent, of the first set of routes; rank 0 for the second's, from rank 1.
    waits = [line for line in finished.stderr.splitlines() if line.startswith("  rank ")]
    assert any("rank 1 has waited" in line and "for rank 0: route set 1 along x" in line for line in waits)
    assert any("rank 0 has waited" in line and "for rank 1: route set 2 along x" in line for line in waits)


def test_a_transfer_that_only_one_rank_makes_is_found_out(run_program: Run):
    source = (
        HEAD
        + """
def run(block):
    tiles = np.zeros((*block.shape, 3), np.float32)
    with installed(block, "x", routes.chain(4)) as east:
        if block.mesh.rank == 1:
            fabric.transfer(block, east, tiles)
"""
    )
    finished = run_program(source, "--mesh", "4x1", ranks=4, env={"MESHRT_WATCHDOG_SECONDS": "2"}, timeout=90)
    assert_message(finished, 124, "deadlock", "rank 1 has waited", "first use of a route set", "control: ")


def test_a_killed_rank_ends_the_job(run_program: Run):
    source = (
        HEAD
        + """
def run(block):
    if block.mesh.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    block.control.allreduce(1)
"""
    )
    finished = run_program(source, ranks=4, env={"MESHRT_WATCHDOG_SECONDS": "0"}, timeout=60)
    assert finished.code > 0, "ended by the launcher, not by the test's own time limit"
