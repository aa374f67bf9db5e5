"""What shells ask to complete a line, and where what asks is written."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from meshrt.cli import cli

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
