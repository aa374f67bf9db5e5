"""Fuzzing of what comes from outside: model folders, prompts, command lines (studies/fuzz/worker.py says what counts).

Inputs are valid ones with changes, and some that never were, from a seed: the same seed gives the same inputs. They run
in a process of their own, which is started anew after each finding. What is found is kept once for each place in the
code: the input, how it ended, its seed and number.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from meshrt.errors import UsageError
from meshrt.ranks.console import Console
from meshrt.studies.grid import Cell, Grid, put

KINDS = ("loaders", "config", "mixtures", "quantized", "gguf", "packed", "onnx", "tokenizer", "prompt", "cli")
WORKER = (sys.executable, "-m", "meshrt.studies.fuzz.worker")


@dataclass
class FuzzTally:
    """What a fuzzing run has done: inputs and findings by kind, and the folders in which findings are kept."""

    inputs: dict[str, int]
    found: dict[str, int]
    seconds: float = 0.0
    kept: dict[str, Path] = field(default_factory=dict)  # by place in the code


def fuzz(
    seconds: float, seed: int, kinds: Sequence[str], out: Path, console: Console, env: Mapping[str, str],
    worker: Sequence[str] = WORKER,
) -> FuzzTally:  # fmt: skip
    """Try inputs for that long, keeping what is found in folders of `out`, which is made when needed."""
    tally = FuzzTally(dict.fromkeys(kinds, 0), dict.fromkeys(kinds, 0))
    start, number, over = time.monotonic(), 0, False
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # disks take longer than what is tried
    with tempfile.TemporaryDirectory(prefix="meshrt-fuzz-", dir=memory) as name:
        scratch = Path(name)
        while not over and time.monotonic() - start < seconds:
            for file in ("number", "trace.txt", "case.json"):
                (scratch / file).unlink(missing_ok=True)
            with (scratch / "stderr.txt").open("wb") as errors:
                process = subprocess.Popen(
                    [*worker, name, str(seed), str(number), ",".join(kinds)], env=env, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=errors,
                )  # fmt: skip
            try:
                over = _wait(process, scratch, start + seconds, console)
            finally:
                process.kill()
                process.wait()
            reached = _number(scratch)
            if reached is None and not over:
                raise RuntimeError(f"the fuzzing process does not start: {(scratch / 'stderr.txt').read_text()}")
            if not over and process.returncode:
                _keep(tally, scratch, out, process.returncode)
                reached = (reached or 0) + 1
            for at in range(number, number if reached is None else reached):
                tally.inputs[kinds[at % len(kinds)]] += 1
            number = reached if reached is not None else number
    console.clear()
    tally.seconds = time.monotonic() - start
    return tally


def _wait(process: subprocess.Popen[bytes], scratch: Path, end: float, console: Console) -> bool:
    """Until the process has ended (False), or the time is over or the user has had enough (True)."""
    try:
        while process.poll() is None:
            if time.monotonic() > end:
                return True
            console.progress("inputs", _number(scratch) or 0, _number(scratch) or 0)
            time.sleep(0.05)
    except KeyboardInterrupt:
        return True
    return False


def _number(scratch: Path) -> int | None:
    """Inputs that are done, which is the number of the one that runs; None before the first."""
    try:
        data = (scratch / "number").read_bytes()
    except FileNotFoundError:
        return None
    return int.from_bytes(data, "little") if data else None


def _keep(tally: FuzzTally, scratch: Path, out: Path, code: int) -> None:
    case = json.loads((scratch / "case.json").read_text())
    tally.found[case["kind"]] += 1
    text = (scratch / "trace.txt").read_text() or f"the process ended with code {code}\n"
    text += (scratch / "stderr.txt").read_text(errors="replace")
    location = where(text)
    if location in tally.kept:
        return
    folder = out / f"{case['kind']}-{case['seed']}-{case['number']}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(scratch / "input", folder / "input", symlinks=True)
    for name in ("case.json", "trace.txt"):
        shutil.copyfile(scratch / name, folder / name)
    (folder / "trace.txt").write_text(text)
    tally.kept[location] = folder


def where(trace: str) -> str:
    """What tells findings apart: the innermost function, and the kind of exception or end."""
    calls = re.findall(r'^ *File "(.*)", line \d+,? in (\S+)', trace, re.MULTILINE)
    lines = [line for line in trace.splitlines() if line and not line.startswith(" ")]
    fatal = next((line for line in lines if line.startswith(("Timeout (", "Fatal Python error"))), None)
    if fatal is not None:  # told by Python's watch, which has the innermost call first
        return " ".join([*(calls[0] if calls else ()), fatal])
    return " ".join([*(calls[-1] if calls else ()), lines[-1].partition(":")[0] if lines else ""])


def parse_kinds(text: str | None) -> tuple[str, ...]:
    """'loaders,cli' -> these kinds; None: all for which there are libraries. UsageError."""
    missing = [name for name in ("onnx", "onnx_ir", "onnxscript") if find_spec(name) is None]
    if text is None:
        return tuple(kind for kind in KINDS if kind != "onnx" or not missing)
    kinds = tuple(text.split(","))
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"--only {kind!r}: there are {', '.join(KINDS)}")
    if "onnx" in kinds and missing:
        raise UsageError(f"--only onnx needs the package {missing[0]}: pip install onnx onnx-ir onnxscript")
    return kinds


def print_tally(tally: FuzzTally, form: str = "table") -> None:
    """Inputs, inputs a second and findings, by kind; then where the findings are."""
    counts = [(kind, tally.inputs[kind], tally.found[kind]) for kind in tally.inputs]
    counts.append(("all", sum(tally.inputs.values()), sum(tally.found.values())))
    rows = [
        (kind, inputs, Cell(inputs / tally.seconds, f"{inputs / tally.seconds:,.1f}"), findings)
        for kind, inputs, findings in counts
    ]
    kept = (f"{folder}: {location}" for location, folder in tally.kept.items())
    put([Grid(("kind", "inputs", "a second", "findings"), rows), *kept], form)
