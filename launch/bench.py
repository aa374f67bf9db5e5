"""How fast the emulator itself is on this machine: each figure beside a baseline of the same run, and its goal."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from meshrt.errors import MeshrtError
from meshrt.launch import local
from meshrt.launch.job import Job

PROMPT = ("--prompt-ids", ",".join(map(str, range(1, 17))), "--max-new-tokens", "32", "--ignore-eos")
LLAMA = ("run", "llama-tiny", *PROMPT)
GEMM = ("run", "gemm", "--mesh", "720x720", "--m", "2048", "--k", "2048", "--n", "2048")
SHIFT = ("run", "shift", "--mesh", "64x64", "--steps", "32")
NUMPY = "import numpy as n; a = n.random.rand(2048, 2048).astype('f'); a @ a"
IMPORTS = "import numpy; from mpi4py import MPI"
STARTUP, MESHGEMM = 0.18, 11.0  # CPU s and s, the goals of docs/speed.md; the other works have none of their own
GOALS = """
Goals are those of docs/speed.md, for two quiet cores. Where there is none, compare with another commit,
on the same machine and in turn."""


@dataclass(frozen=True)
class BenchLine:
    """One line of the table. `unit` is s, CPU s or GB; `baseline` says what `against` is a figure of; not all have a
    `goal`.
    """

    work: str
    unit: str
    measured: float
    baseline: str
    against: float
    goal: float | None = None


class Timing(NamedTuple):
    """A run from start to end: by the clock, of all processes' processor time, and its report."""

    wall_seconds: float
    cpu_seconds: float
    report: dict[str, Any]


def measure() -> list[BenchLine]:
    """Run everything, about two minutes. MpiError where there is no MPI, MeshrtError where a run fails."""
    alone, two = timed(1, LLAMA).wall_seconds, timed(2, LLAMA).wall_seconds
    many, _, report = timed(64, LLAMA)
    imports = cpu_seconds([sys.executable, "-c", IMPORTS])
    wafer, _, wafer_report = timed(2, GEMM)
    began = perf_counter()
    subprocess.run([sys.executable, "-c", NUMPY], check=True, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    plain = perf_counter() - began
    shift = timed(1, SHIFT).report
    host, wafer_host, shift_host = report["host"], wafer_report["host"], shift["host"]
    same = "the same on 1 rank"
    return [
        BenchLine("llama-tiny, 16 + 32 tokens, 8 x 8 on 64 ranks", "s", many, same, alone),
        BenchLine("the same on 2 ranks", "s", two, same, alone),
        BenchLine(
            "start-up of a rank, median", "CPU s", host["startup_cpu_seconds"], "imports alone", imports, STARTUP
        ),
        BenchLine("MeshGEMM 2048^3 on 720 x 720, 2 ranks", "s", wafer, "NumPy float32, 1 thread", plain, MESHGEMM),
        BenchLine("its memory, both ranks", "GB", wafer_host["rss_bytes"] / 1e9, "A, B and C", 3 * 4 * 2048**2 / 1e9),
        BenchLine(
            "line shift, 16 MiB of tiles", "s", shift_host["shift_seconds"], "NumPy copy", shift_host["copy_seconds"]
        ),
    ]


def timed(ranks: int, arguments: tuple[str, ...]) -> Timing:
    """One run. MeshrtError, with the run's exit code, where it fails."""
    mpirun = local.find_mpirun()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        job = Job(ranks, (*arguments, "--quiet", "--json", str(path)))
        many = f"{ranks} rank{'s' * (ranks > 1)}"
        print(f"meshrt {' '.join(arguments)}, {many} ...", file=sys.stderr, flush=True)
        began, spent = perf_counter(), _spent()
        done = subprocess.run(local.local_argv(job, mpirun), env=local.local_environment(mpirun), check=False)
        seconds, spent = perf_counter() - began, _spent() - spent
        if done.returncode or not path.exists():
            error = MeshrtError(f"the run ended with code {done.returncode}: see above")
            error.exit_code = max(done.returncode, MeshrtError.exit_code)  # its reason is the reason
            raise error
        report: dict[str, Any] = json.loads(path.read_text())
        return Timing(seconds, spent, report)


def bare(ranks: int, folder: str) -> tuple[float, float]:
    """Seconds from start to end of the messages recorded in a folder, in bare mpi4py: by the clock, and of all
    processes' processor time. MeshrtError.
    """
    mpirun = local.find_mpirun()
    argv = [*local.mpirun_argv(ranks, mpirun), sys.executable, "-P", "-m", "meshrt.studies.bench.bare", folder]
    print(f"its messages in bare mpi4py, {ranks} rank{'s' * (ranks > 1)} ...", file=sys.stderr, flush=True)
    began, spent = perf_counter(), _spent()
    done = subprocess.run(argv, env=local.local_environment(mpirun), check=False)
    seconds, spent = perf_counter() - began, _spent() - spent
    if done.returncode:
        raise MeshrtError(f"the messages ended with code {done.returncode}: see above")
    return seconds, spent


def cpu_seconds(command: list[str]) -> float:
    """Processor time of a command, user and system."""
    before = _spent()
    subprocess.run(command, check=True)
    return _spent() - before


def _spent() -> float:
    """By all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rows(lines: list[BenchLine]) -> list[tuple[str, tuple[float, str], tuple[float, str] | None, str, float]]:
    """Each line's work, number and goal, with their texts, baseline, and ratio to it."""
    return [
        (
            line.work, (line.measured, f"{line.measured:.3g} {line.unit}"),
            None if line.goal is None else (line.goal, f"{line.goal:.3g} {line.unit}"),
            f"{line.baseline}: {line.against:.3g} {line.unit}", line.measured / line.against,
        )
        for line in lines
    ]  # fmt: skip
