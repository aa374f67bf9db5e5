"""Every block of code in README, docs and examples: run, or at least checked against what there is.

A line that begins with `$ ` is shown with what it prints: it is run, and every line below it, up to an empty one, is
among those printed ("..." stands for others). Other lines of a shell are parsed, so that no command and no option that
is documented is gone; those of the pages in RUN are run with --all, but for SLOW. Blocks of Python are run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from mpi_jobs import Finished, child_environment

from meshrt.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "README.md"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$|((?:^ {4}[^\n]*\n|^\n(?= {4}))+)", re.M | re.S)
# What stands for something else in a line that is shown: a value in its place, so that it can be parsed.
STANDS_FOR = (
    (r"\{[\w*]+\}", "8"), (r"\[(?=-)|(?<=\w)\](?= |$)", ""), (r"(--[a-z]+) \.\.\.", r"\1 x"), (r" \.\.\.", ""),
    (r" N(?= |$)", " 1"), (r" R(?= |$)", " 0.5"), (r"PROGRAM\|MODEL\|FILE\.py", "gemm"),
    (r"([a-z][\w.-]*)(\|[\w.-]+)+", r"\1"),
)  # fmt: skip
# Pages whose lines are run with --all, in one folder one after the other, and what is not: too long, or not everywhere.
RUN = (
    "docs/howto/algorithm.md", "docs/howto/device.md", "docs/howto/ci.md", "docs/howto/cluster.md",
    "docs/howto/model.md", "README.md",
)  # fmt: skip
SLOW = {
    "launch/quickstart": "makes an environment; tests/launch has it",
    "ci/test": "is this",
    "reproduce": "minutes; tests/studies has it",
    "--hosts": "needs two hosts; ci/two-hosts has them",
    "--model FOLDER": "any folder; tests/models has many",
    "import model.gguf": "any file; tests/models has many",
    "quantize mixtral": "needs no file; a minute",
    "diff before.json": "of two reports of the reader's",
    "mpirun -n 64": "64 ranks; ci/test has them elsewhere",
    "doctor": "what it says is of the machine",
    "mixtral-tiny": "half a minute; tests/programs has it",
    "llama3.2-1b": "a minute",
}


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of each block; of one that is indented the language is ''."""
    for match in BLOCK.finditer(page.read_text()):
        indented = match[3]
        yield ("", re.sub(r"^ {4}", "", indented, flags=re.M)) if indented else (match[1], match[2])


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each line of a shell, without what is said of it, and what is shown below it if it begins with $."""
    for language, text in blocks(page):
        if language in ("python", "text", "yaml", "json", "toml", "c", "csl"):
            continue
        lines = re.sub(r"\\\n\s*", " ", text).splitlines()
        for at, line in enumerate(lines):
            shown = []
            if line.startswith("$ "):
                for below in lines[at + 1 :]:
                    if not below or below.startswith("$ "):
                        break
                    shown.append(below)
            yield re.split(r"\s{3,}|\s+# ", line.removeprefix("$ "))[0].rstrip(), shown


def of_meshrt(line: str) -> Iterator[list[str]]:
    """The arguments of each call of `meshrt` in a line."""
    for text, value in STANDS_FOR:
        line = re.sub(text, value, line)
    for part in re.split(r"\s*(?:&&|;|\||>)\s+", line):
        words = shlex.split(part) if "meshrt" in part else []
        while words and (words[0] in ("mpirun", "srun", "time") or re.fullmatch(r"-n|-np|\d+|[A-Z_]+=\S*", words[0])):
            words = words[1:]
        if words[:3] == ["python", "-m", "meshrt"]:
            words = words[2:]
        if words and words[0] == "meshrt":
            yield words[1:]


LINES = sorted(
    {
        (str(page.relative_to(ROOT)), shlex.join(arguments))
        for page in PAGES
        for line, _ in commands(page)
        if line.startswith(("meshrt", "mpirun", "srun", "python -m meshrt", "time", "MESHRT_"))
        for arguments in of_meshrt(line)
    }
)
SHOWN = [(page, line, shown) for page in PAGES for line, shown in commands(page) if shown]


def parse(command: click.Command, name: str, arguments: list[str], parent: click.Context | None = None) -> None:
    """Raise what click says of a command, an option or a value that there is not; run nothing."""
    if "--help" in arguments or "--version" in arguments:
        arguments = [argument for argument in arguments if argument not in ("--help", "--version")]
        if not arguments:
            return
    context = command.make_context(name, arguments, parent=parent)
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        inner_name, inner, others = command.resolve_command(context, rest)
        assert inner is not None
        parse(inner, inner_name or "", others, context)


def test_there_are_as_many_lines_as_were_found_once() -> None:
    assert len(LINES) > 150 and len(SHOWN) > 12


@pytest.mark.parametrize(("page", "line"), LINES)
def test_no_documented_option_is_gone(page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink(ROOT / "examples", "examples")
    for file in (ROOT / "examples").glob("*.py"):
        os.symlink(file, file.name)
    os.symlink(ROOT / "examples" / "rowsum.py", "my_program.py")
    parse(cli, "meshrt", shlex.split(line))


@pytest.mark.parametrize(("page", "line", "shown"), SHOWN, ids=[line for _, line, _ in SHOWN])
def test_a_line_prints_what_is_shown(
    page: Path, line: str, shown: list[str], run_meshrt: Callable[..., Finished]
) -> None:
    words = [str(ROOT / word) if word.startswith("examples/") else word for word in shlex.split(line)]
    if words[0] == "python":
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, timeout=100, cwd=ROOT)
        output = done.stdout + done.stderr
    else:
        ranks = 1
        if words[0] == "mpirun":
            ranks, words = int(words[2]), words[3:]
        words = [str(ROOT / "examples" / word) if word in ("rowsum.py", "tiled.py") else word for word in words[1:]]
        _, out, err, _ = run_meshrt(*words, ranks=ranks)
        output = out + err
    printed = [" ".join(text.split()) for text in output.splitlines()]
    for text in shown:
        plain = " ".join(text.split())
        assert plain == "..." or plain in printed or any(output_line.startswith(plain) for output_line in printed), (
            text,
            output,
        )


PYTHON = [
    pytest.param(text, id=f"{page.relative_to(ROOT)}-{at}")
    for page in PAGES
    for at, (language, text) in enumerate(blocks(page))
    if language == "python"
]


@pytest.mark.parametrize("text", PYTHON)
def test_a_block_of_python_runs(text: str, tmp_path: Path, run_meshrt: Callable[..., Finished]) -> None:
    """As a program where it is one, as a script else."""
    file = tmp_path / "block.py"
    file.write_text(text)
    if "meshrt.run(" in text or "def run(" not in text:
        done = subprocess.run(
            [sys.executable, str(file)], capture_output=True, text=True, timeout=100, env=child_environment()
        )
        assert (done.returncode, done.stderr) == (0, "")
    else:
        code, _, err, _ = run_meshrt("run", str(file), "--quiet")
        assert (code, err) == (0, "")


TO_RUN = [
    (page, line)
    for page in RUN
    for line, shown in commands(ROOT / page)
    if not shown and line.startswith(("meshrt", "mpirun")) and not any(word in line for word in SLOW)
]


@pytest.mark.all
@pytest.mark.parametrize("page", RUN)
def test_the_lines_of_a_page_run_one_after_the_other(page: str, tmp_path: Path) -> None:
    os.symlink(ROOT / "examples", tmp_path / "examples")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    lines = [line for where, line in TO_RUN if where == page]
    assert lines
    for line in lines:
        env = child_environment() | {"PATH": path}
        done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=env)
        assert done.returncode == 0, (line, done.stderr)


def test_a_page_says_of_no_line_that_it_is_slow_which_is_not_there() -> None:
    every = [line for page in RUN for line, _ in commands(ROOT / page)]
    for word in SLOW:
        assert any(word in line for line in every), word


def test_the_workflow_that_is_shown_is_the_file() -> None:
    (text,) = (text for language, text in blocks(ROOT / "docs" / "howto" / "ci.md") if language == "yaml")
    assert (ROOT / "examples" / "guard.yml").read_text().partition("\n")[2] == text
