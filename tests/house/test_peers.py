"""ci/peers: the works that other tools are given are those that they should be."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

PEERS = Path(__file__).resolve().parents[2] / "ci" / "peers"
compiler = shutil.which("cc") or shutil.which("gcc")


@pytest.fixture(scope="module")
def works() -> ModuleType:
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
