"""`meshrt bench floor`: what is sent again in bare mpi4py is what the run sent. How fast is no test."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshrt.launch.bench import Timing, bare
from meshrt.studies.bench import floor
from meshrt.studies.bench.bare import DUPLICATE, FIELDS, RECEIVE, SEND, WAIT

RUN = (
    "run",
    "llama-tiny",
    "--mesh",
    "4x4",
    "--prompt-ids",
    "1,2,3",
    "--max-new-tokens",
    "2",
    "--core-memory",
    "200000",
)


def events_of(folder: Path, rank: int) -> list[tuple[int, ...]]:
    numbers = array("q")
    numbers.frombytes((folder / str(rank)).read_bytes())
    return [tuple(numbers[at : at + FIELDS]) for at in range(0, len(numbers), FIELDS)]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.all)])
def test_the_messages_of_a_run_are_recorded_and_sent_again(
    ranks: int, run_meshrt: Callable[..., Any], tmp_path: Path
) -> None:
    def timed(ranks: int, arguments: tuple[str, ...]) -> Timing:
        path = tmp_path / "report.json"
        code, out, err, seconds = run_meshrt(*arguments, "--quiet", "--json", str(path), ranks=ranks)
        assert (code, out, err) == (0, "", "")
        reports.append(json.loads(path.read_text()))
        return Timing(seconds, seconds, reports[-1])

    def kept(ranks: int, folder: str) -> tuple[float, float]:
        recorded.extend(events_of(Path(folder), rank) for rank in range(ranks))
        return bare(ranks, folder)

    reports, recorded = list[dict[str, Any]](), list[list[tuple[int, ...]]]()
    figures = floor.measure(timed, kept, ranks, RUN)
    sent, received = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    packets = 0
    for rank, events in enumerate(recorded):
        posted = 0
        for kind, comm, other, nbytes, tag in events:
            if kind == SEND:
                sent[comm, rank, other, nbytes, tag] += 1
                packets += comm == 3  # after those for control and for first uses, as block.py makes them
            elif kind == RECEIVE:
                received[comm, other, rank, nbytes, tag] += 1
            posted += kind not in (DUPLICATE, WAIT)
        assert sum(event[0] == WAIT for event in events) == posted  # everything that was posted was waited for
    assert sent == received
    assert packets == reports[0]["host"]["messages"]
    assert figures.messages == sum(sent.values()) > packets
    assert figures.bytes == sum(nbytes * count for (_, _, _, nbytes, _), count in sent.items())
    assert 0 < figures.bare_seconds < figures.bare_job_seconds
    assert figures.job_cpu_seconds == figures.job_seconds  # as `timed` above has it
    assert figures.bare_job_cpu_seconds > 0
    assert floor.as_json(figures)["ratio"] == figures.job_seconds / figures.bare_job_seconds


def test_of_several_turns_the_medians_count(tmp_path: Path) -> None:
    clock = iter([9.0, 5.0, 2.0, 8.0])  # the recorded run, and three turns

    def timed(_: int, arguments: tuple[str, ...]) -> Timing:
        if "--to" in arguments:
            Path(arguments[3], "0").write_bytes(b"")
        seconds = next(clock)
        return Timing(seconds, 2 * seconds, {"host": {"wall_seconds": seconds / 2}})

    def alone(_: int, folder: str) -> tuple[float, float]:
        took = next(bare_clock)
        Path(folder, "seconds").write_text(str(took / 4))
        return took, 3 * took

    bare_clock = iter([1.0, 3.0, 2.0])
    figures = floor.measure(timed, alone, 1, RUN, 3)
    assert (figures.job_seconds, figures.job_cpu_seconds, figures.run_seconds) == (5.0, 10.0, 2.5)
    assert (figures.bare_job_seconds, figures.bare_job_cpu_seconds, figures.bare_seconds) == (2.0, 6.0, 0.5)
    assert (figures.turns, floor.as_json(figures)["turns"], floor.as_json(figures)["ratio"]) == (3, 3, 2.5)


def test_a_floor_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    floor.print_floor(floor.Floor(64, ("run", "shift"), 1200, 65536, 3.0, 2.0, 1.0, 0.25, 5.0, 4.0))
    first, head, whole, inside, processors = capsys.readouterr().out.splitlines()
    assert first == "run shift: 64 ranks, 1,200 messages, 65,536 bytes"
    assert head.split() == ["seconds", "bare", "mpi4py", "ratio"]
    assert whole.split() == ["the", "job", "3.00", "2.00", "1.50"]
    assert inside.split() == ["without", "its", "start", "1.00", "0.25", "4.00"]
    assert processors.split() == ["the", "job,", "processors", "5.00", "4.00", "1.25"]


def test_a_run_that_fails_leaves_no_messages(run_meshrt: Callable[..., Any], tmp_path: Path) -> None:
    run = ("run", "gemm", "--core-memory", "1")
    code, _, err, _ = run_meshrt("bench", "messages", "--to", str(tmp_path), *run, ranks=2)
    assert code == 3 and "the limit is 1" in err
    assert not list(tmp_path.iterdir())
