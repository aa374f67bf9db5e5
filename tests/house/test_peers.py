"""ci/peers: the works that other tools are given are those that they should be."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest

PEERS = Path(__file__).resolve().parents[2] / "ci" / "peers"
compiler = shutil.which("cc") or shutil.which("gcc")


@pytest.fixture(scope="module")
def preparing() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PEERS))  # as for the commands beside it
        yield importlib.import_module("preparing")


@pytest.fixture(scope="module")
def works(preparing: ModuleType) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("works", str(PEERS / "works"))
    spec = importlib.util.spec_from_loader("works", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("work", ["W1", "W1p", "W2", "W3", "W5"])
def test_schedules_send_what_is_received_and_wait_for_the_step_before(works: ModuleType, work: str):
    cores, steps = 64, 3
    sent: Counter[tuple[int, ...]] = Counter()
    received: Counter[tuple[int, ...]] = Counter()
    for text in works.schedule(work, cores, steps):
        if text.startswith("num_ranks"):
            assert text == f"num_ranks {cores}\n"
            continue
        core = int(re.findall(r"^rank (\d+) {", text)[0])
        for step, verb, nbytes, other, tag in re.findall(r"n(\d+): (\w+) (\d+)b (?:to|from) (\d+) tag (\d)", text):
            ends = (core, int(other)) if verb == "send" else (int(other), core)
            (sent if verb == "send" else received)[(*ends, int(step), int(nbytes), int(tag))] += 1
        needs = re.findall(r"[sr]\dn(\d+) requires r\dn(\d+)", text)
        assert needs and all(int(after) == int(before) + 1 for after, before in needs)
    assert sent == received and sum(sent.values()) == works.expected(work, cores, steps)
    assert all(count == 1 for count in sent.values())


@pytest.mark.parametrize("work", ["W1", "W2"])
def test_rings_are_those_of_the_mesh(works: ModuleType, work: str):
    """Every core's next has it before itself; interleaved, no two of them are more than two hops apart."""
    for core in range(64):
        for axis, (after, _) in enumerate(works.rings_of(work, core, 64)):
            assert works.rings_of(work, after, 64)[axis][1] == core
            hops = abs(after % 8 - core % 8) + abs(after // 8 - core // 8)
            assert hops in ((1, 2) if work == "W2" else (1, 7))


@pytest.mark.skipif(compiler is None, reason="the loops are C: there is no compiler here")
@pytest.mark.parametrize(("width", "side"), [(2, 1), (5, 3), (8, 4)])
def test_the_loop_of_meshgemm_multiplies_and_is_in_time(tmp_path: Path, width: int, side: int):
    """The last number of C by NumPy, with rings as they should be; and no step takes less than its product."""
    import numpy as np

    assert compiler is not None
    program, steps = tmp_path / "meshgemm", width - 1
    subprocess.run([compiler, "-std=c99", "-O1", str(PEERS / "meshgemm.c"), "-o", str(program)], check=True)
    finished = subprocess.run([program, str(width), str(side), str(steps)], check=True, capture_output=True, text=True)
    messages, cycles, last = map(
        float, re.findall(r": (\d+) messages, (\d+) cycles, C ends with (\S+),", finished.stdout)[0]
    )
    assert messages == 2 * width**2 * steps and cycles >= steps * side**3

    ring = [*range(0, width, 2), *range(width - 1 - width % 2, 0, -2)]
    numbers = np.arange(width**2 * side**2)
    a, b = ((numbers % mod).reshape(width, width, side, side) for mod in (7, 5))
    place = ring.index(width - 1)
    came_from = [ring[(place - step) % width] for step in range(steps)]
    total = sum(a[width - 1, core] @ b[core, width - 1] for core in came_from)
    assert last == total[-1, -1]


# ---- what is not here


def run_peer(name: str, *arguments: str, **env: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of a command in ci/peers."""
    ended = subprocess.run([sys.executable, str(PEERS / name), *arguments], env=env, capture_output=True, text=True)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("name", ["crossbar", "meshgemm"])
def test_a_loop_without_a_compiler_is_one_line(name: str):
    code, out, err = run_peer(name, PATH="/nowhere")
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"{name}\.c is not built: there is no compiler cc on PATH; .*CC=.*\n", err)


@pytest.mark.parametrize("command", ["mutants", "peers/crossbar"])
def test_a_python_without_what_it_takes_is_one_line(command: str):
    path = PEERS.parent / command
    ended = subprocess.run([sys.executable, "-S", str(path)], env={}, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(rf"\S+ has no (\w+, )*mpi4py.*: run \.venv/bin/python ci/{command}\n", ended.stderr)


def test_a_folder_that_is_no_loggopsim_is_one_line(tmp_path: Path):
    code, out, err = run_peer("works", "--loggopsim", str(tmp_path / "none"), PATH="/nowhere")
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"--loggopsim {tmp_path}/none: no checkout of LogGOPSim: .*\n", err)


def test_a_compiler_that_fails_is_one_line(preparing: ModuleType, tmp_path: Path):
    with pytest.raises(preparing.Refusal, match=r"^crossbar\.c is not built: false: ended with code 1; try: [^\n]*$"):
        preparing.build(["false"], [], PEERS / "crossbar.c", tmp_path / "loop")


@pytest.fixture
def only_git(preparing: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with git and nothing else, and a cache of its own."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not here, and what is tried is how it clones")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(git)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(preparing, "INCLUDES", ())
    return tmp_path


def test_what_cannot_be_installed_is_said_and_what_is_missing_is_named(
    preparing: ModuleType, only_git: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(preparing, "clone", lambda folder: f"fetched into {folder}")
    lines = [*preparing.install(wants_loggopsim=True)]
    assert len(lines) == 2 and lines[1] == f"fetched into {only_git}/cache/meshrt/LogGOPSim"
    assert lines[0].startswith("nothing is installed: apt-get is not on PATH; install")
    for wanted in ("smpicc", "re2c", "gengetopt", "graphviz/cgraph.h"):
        assert wanted in lines[0]


@pytest.mark.parametrize(("refused", "user"), [("", 0), ("re2c", 0), ("", 1)])
def test_each_package_is_a_step_of_its_own(
    preparing: ModuleType, only_git: Path, monkeypatch: pytest.MonkeyPatch, refused: str, user: int
):
    """Of root; who is not, and has no sudo, is told what root has to run."""
    (only_git / "bin" / "apt-get").write_text(
        f'#!/bin/sh\ncase "$*" in *"install "*"{refused or "nothing"}") echo "E: no $*" >&2; exit 100; esac\n'
    )
    (only_git / "bin" / "apt-get").chmod(0o755)
    monkeypatch.setattr(preparing.os, "geteuid", lambda: user)
    lines = [*preparing.install(wants_loggopsim=False)]
    missing = [package for package in preparing.PACKAGES if package != "git"]
    if user:
        assert len(lines) == 1 and lines[0].endswith(f"have root run: apt-get install {' '.join(missing)}")
        return
    for package, line in zip(missing, lines, strict=True):
        if package == refused:
            assert line.startswith("re2c is not installed (re2c, for LogGOPSim): E: no ")
            assert line.endswith("; try: apt-get install re2c")
        else:
            assert line.startswith(f"{package} is installed (")


def test_loggopsim_is_fetched_whole_or_not_at_all(preparing: ModuleType, only_git: Path):
    source, folder = only_git / "source", preparing.cache()
    with pytest.raises(
        preparing.Refusal, match=r"^LogGOPSim is not fetched: fatal: .*; fetch [^\n]* --loggopsim FOLDER$"
    ):
        preparing.clone(folder, str(source))
    assert not folder.exists() and not list(folder.parent.iterdir())
    (source / "src" / "LogGOPSim").mkdir(parents=True)
    (source / "src" / "LogGOPSim" / "Makefile").write_text("all:\n")
    author = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for step in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "1"]):
        subprocess.run(["git", *step], cwd=source, check=True)
    assert preparing.clone(folder, str(source)) == f"LogGOPSim is fetched into {folder}"
    assert preparing.is_checkout(folder)
    with pytest.raises(
        preparing.Refusal,
        match=r"cannot be built: make: .*; install g\+\+, make, re2c, gengetopt, libgraphviz-dev, as --install",
    ):
        preparing.build_loggopsim(folder, only_git)


# ---- figures


def fake_run(rates: Mapping[str, float], start: float) -> Callable[[Sequence[str]], tuple[float, str]]:
    """Runs of commands NAME WORK CORES STEPS, of so many messages a second, beyond their start."""

    def run(argv: Sequence[str]) -> tuple[float, str]:
        name, _, cores, steps = argv
        sent = int(cores) * int(steps) * 2
        if not rates[name]:
            raise sys.modules["preparing"].Refusal("it broke")
        printed = {
            "meshrt": f'{{"result": {{}}, "measured": {{"messages": {sent}}}}}',
            "LogGOPSim": f"Events: {3 * sent}",
        }.get(name, f"{sent} messages, 0 numbers wrong")
        return start + sent / rates[name], printed

    return run


def test_a_tool_that_fails_is_left_out_and_the_others_are_paired(
    works: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    rates = {"meshrt": 2e6, "SMPI": 5e4, "LogGOPSim": 1e6, "MPI": 0.0}
    ways = {name: lambda *work, name=name: [name, *map(str, work)] for name in rates}
    monkeypatch.setattr(works, "tools", lambda *_: ways)
    monkeypatch.setattr(works, "processor_seconds", fake_run(rates, 0.5))
    assert works.main(["--only", "W1", "--cores", "64", "1024", "--times", "1"]) == 1
    out = capsys.readouterr().out
    assert "MPI, W1 on 64 cores, is left out: it broke\n" in out
    lines = [line.split() for line in out.split("\n\n")[1].splitlines()]
    assert lines[1:] == [
        ["work", "cores", "meshrt", "SMPI", "LogGOPSim", "meshrt", "/", "fastest", "other"],
        ["W1", "64", "2,000", "50", "1,000", "2.00"],
        ["W1", "1024", "2,000", "50", "1,000", "2.00"],
    ]


def test_what_takes_no_longer_than_its_start_is_no_figure(
    works: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(works, "processor_seconds", fake_run({"meshrt": float("inf")}, 0.5))
    ways = {"meshrt": lambda *work: ["meshrt", *map(str, work)]}
    assert works.pair(ways, "W1", 64, 2) == ({}, False)
    assert "its steps took no longer than one of them" in capsys.readouterr().out
