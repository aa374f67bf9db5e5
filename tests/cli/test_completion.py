"""What shells ask to complete a line, and where what asks is written."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from meshrt.cli import COMPLETE, cli

Run = Callable[..., Any]
PLACES = {
    "bash": ".local/share/bash-completion/completions/meshrt",
    "zsh": ".zfunc/_meshrt",
    "fish": ".config/fish/completions/meshrt.fish",
}


def offered(args: list[str], incomplete: str) -> list[str]:
    return [item.value for item in ShellComplete(cli, {}, "meshrt", "").get_completions(args, incomplete)]


@pytest.mark.parametrize(
    ("args", "incomplete", "offers"),
    [
        ([], "rep", ["reproduce"]),
        ([], "d", ["devices", "diff", "doctor"]),
        (["run"], "llama-", ["llama-65b", "llama-tiny"]),
        (["run"], "gemv", ["gemv"]),
        (["run", "gemm"], "--algo", ["--algorithm"]),
        (["run", "gemm", "--algorithm"], "c", ["cannon"]),
        (["run", "--on"], "g", ["gpu"]),
        (["completion"], "", ["bash", "zsh", "fish"]),
    ],
)
def test_what_is_offered(args: list[str], incomplete: str, offers: list[str]) -> None:
    assert offered(args, incomplete) == offers


@pytest.mark.parametrize(
    "line", ["rnu 1", "run no_model 1", "bench no_work 1", "fit no_model 1", "run gemm --algorithm 1"]
)
def test_of_a_line_that_is_wrong_nothing_is_said(line: str, run_meshrt: Run) -> None:
    """A shell would show it in the midst of what is typed."""
    env = {COMPLETE: "bash_complete", "COMP_WORDS": f"meshrt {line}", "COMP_CWORD": str(len(line.split()))}
    code, out, err, _ = run_meshrt(env=env)
    assert (out.strip(), err) == ("", "") and code in (0, 1)


@pytest.mark.parametrize("shell", sorted(PLACES))
def test_it_is_written_where_the_shell_looks(
    shell: str, run_meshrt: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    printed = run_meshrt("completion", shell)
    env = {"HOME": str(tmp_path), "SHELL": f"/bin/{shell}"}
    code, out, err, _ = run_meshrt("completion", "--install", env=env)
    assert (code, err, printed.code) == (0, "", 0)
    path = tmp_path / PLACES[shell]
    assert out.startswith(f"{path}: ")
    assert path.read_text() == printed.stdout.removesuffix("\n")
    if shell == "bash":
        assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0


def test_another_shell_is_refused(run_meshrt: Run) -> None:
    code, out, err, _ = run_meshrt("completion", env={"SHELL": "/bin/csh"})
    assert (code, out) == (2, "")
    assert err == "meshrt: error: the shell 'csh' is not known: meshrt completion bash|zsh|fish\n"
