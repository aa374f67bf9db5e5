"""The host's memory ends while the compiled machine runs: one message, whichever piece is refused, and no crash."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import meshrt.csl
from tests.csl.test_csl_machine import END, ROUTES, VECTORS, WAVELETS
from tests.csl_programs import write

COMPILER = shutil.which("cc") or shutil.which("gcc")
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    COMPILER is None, reason="the machine is compiled anew, with allocations that fail: no cc or gcc"
)
# The machine's allocations go through these: the one whose turn it is gets nothing.
FAULTS = """
#include <stdlib.h>
long turn = 0, asked = 0;
static int fails(void) { asked++; return turn > 0 && !--turn; }
void *faulty_malloc(size_t size) { return fails() ? NULL : malloc(size); }
void *faulty_calloc(size_t count, size_t size) { return fails() ? NULL : calloc(count, size); }
void *faulty_realloc(void *old, size_t size) { return fails() ? NULL : realloc(old, size); }
"""
CHILD = """
import ctypes, importlib.util, json, sys
from pathlib import Path
library, layout, turns, words = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4:]
spec = importlib.util.spec_from_file_location("faulty._machine", library)
machine = importlib.util.module_from_spec(spec)
spec.loader.exec_module(machine)
from meshrt.csl.machine import compiled
compiled._machine = machine
counts = ctypes.CDLL(library)
turn, asked = (ctypes.c_long.in_dll(counts, name) for name in ("turn", "asked"))
if words:
    turn.value = turns[0]
    sys.argv = ["meshrt", *words]
    from meshrt.cli import main
    main()
from meshrt.csl.language.program import build
from meshrt.csl.report import report_of
from meshrt.csl.machine.wafer import Wafer
program = build(Path(layout), {"width": 2}, "wse2")
found = []
for one in turns:
    wafer = Wafer(program)
    wafer.launch("main", ())
    turn.value, asked.value = one, 0
    try:
        wafer.idle()
        found.append([asked.value, wafer.machine is not None, report_of(wafer)["cycles"]["max"]])
    except MemoryError:
        found.append("MemoryError")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine with faults, as pyproject.toml names its files."""
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "faults.c").write_text(FAULTS)
    sources = re.findall(r"meshrt/csl/native/\w+\.c", (ROOT / "pyproject.toml").read_text())
    assert {ROOT / name for name in sources} == {*(Path(meshrt.csl.__path__[0]) / "native").glob("*.c")}
    assert COMPILER is not None
    flags = ["-std=c99", "-O0", "-fPIC", "-ffp-contract=off", "-I", sysconfig.get_paths()["include"]]
    renamed = [f"-D{name}=faulty_{name}" for name in ("malloc", "calloc", "realloc")]
    path = folder / "_machine.so"
    subprocess.run([COMPILER, *flags, "-c", "faults.c"], cwd=folder, check=True)
    files = [str(ROOT / name) for name in sources]
    subprocess.run([COMPILER, *flags, *renamed, "-shared", *files, "faults.o", "-o", str(path)], cwd=folder, check=True)
    return path


def child(library: Path, layout: Path, turns: list[int], *words: str) -> subprocess.CompletedProcess[str]:
    given = [sys.executable, "-c", CHILD, str(library), str(layout), json.dumps(turns), *words]
    return subprocess.run(given, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(("body", "routes"), [(VECTORS, ""), (WAVELETS, ROUTES)])
def test_whichever_piece_is_refused(body: str, routes: str, library: Path, tmp_path: Path) -> None:
    """Each of the first hundred, and some of the rest; where none is, the run is what it always was."""
    layout = write(tmp_path, body + END, routes)
    whole = child(library, layout, [0])
    assert whole.returncode == 0, whole.stderr
    ((requests, in_machine, cycles),) = json.loads(whole.stdout)
    assert in_machine and requests > 10
    turns = [*range(1, min(requests, 100) + 1), *range(101, requests + 1, 37), requests]
    ran = child(library, layout, [*turns, 0])
    assert ran.returncode == 0, ran.stderr[-500:]
    *refused, last = json.loads(ran.stdout)
    assert refused == ["MemoryError"] * len(turns)
    assert last == [requests, True, cycles]


def test_one_message(library: Path, tmp_path: Path) -> None:
    layout = write(tmp_path, WAVELETS + END, ROUTES)
    words = ["csl", "run", str(layout), "--params", "width:2", "--launch", "main"]
    ran = child(library, layout, [20], *words)
    assert ran.returncode == 2
    assert ran.stderr.startswith("meshrt: error: this machine has too little memory")
    assert len(ran.stderr.splitlines()) == 1 and not ran.stdout
