"""The file that shows what ran when on NeuronCores."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from runs import run_on_cores


@pytest.mark.mpi(ranks=[1, 2])
def test_a_trace_has_every_instruction_once_and_no_engine_does_two_things(tmp_path: Path, comm: Any) -> None:
    file = Path(comm.bcast(str(tmp_path))) / "trace.json"
    report = run_on_cores(
        comm, "xuv", 2, kernel="mlp", m=300, k=200, r=130, n=260, block_m=150, transpose="tensor", trace=str(file)
    )
    if comm.rank:
        return
    lines = defaultdict(list)
    for event in json.loads(file.read_text())["traceEvents"]:
        assert event["ph"] == "X"
        lines[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    measured = report["measured"]
    last = max(end for line in lines.values() for _, end in line)
    assert last == pytest.approx(1e6 * measured["critical_path"]["seconds"])
    for engine in ("tensor", "vector", "scalar"):
        own = [sorted(line) for (_, name), line in lines.items() if name == engine]
        assert len(own) == 2 and sum(map(len, own)) == measured["engines"][engine]["instructions"]
        busy = sum(end - begin for line in own for begin, end in line)
        assert busy == pytest.approx(1e6 * measured["engines"][engine]["busy_seconds"])
        for line in own:
            assert all(after[0] >= before[1] - 1e-6 for before, after in pairwise(line))
    transfers = sum(len(line) for (_, name), line in lines.items() if name.startswith("dma "))
    assert transfers == measured["engines"]["dma"]["instructions"]
