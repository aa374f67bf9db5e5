"""What a run costs over its messages alone: the same ranks send the same messages in bare mpi4py, nothing else."""

from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from meshrt.studies.bench.bare import FIELDS, SEND
from meshrt.studies.bench.workloads import Timed
from meshrt.studies.grid import Cell, Grid, put


@dataclass(frozen=True)
class Floor:
    """Seconds of whole jobs, and without their start and end, medians of some turns; `messages` from rank to rank.

    By the clock, and of all processes' processor time, which holds on a machine that others use.
    """

    ranks: int
    arguments: tuple[str, ...]
    messages: int
    bytes: int
    job_seconds: float
    bare_job_seconds: float
    run_seconds: float
    bare_seconds: float
    job_cpu_seconds: float
    bare_job_cpu_seconds: float
    turns: int = 1

    @property
    def ratio(self) -> float:
        return self.job_seconds / self.bare_job_seconds


def measure(
    timed: Timed, bare: Callable[[int, str], tuple[float, float]], ranks: int, arguments: tuple[str, ...],
    times: int = 1,
) -> Floor:  # fmt: skip
    """`bare(ranks, folder)` gives the seconds of bare.py on a folder, by the clock and of processors.

    The run is recorded, then both are timed, as they are and in turn, so many times.
    """
    with TemporaryDirectory() as folder:
        timed(ranks, ("bench", "messages", "--to", folder, *arguments))
        messages, nbytes = _sent(Path(folder), ranks)
        turns = [_turn(timed, bare, ranks, arguments, folder) for _ in range(times)]
    job, bare_job, run, bare_run, spent, bare_spent = (median(figures) for figures in zip(*turns, strict=True))
    return Floor(ranks, arguments, messages, nbytes, job, bare_job, run, bare_run, spent, bare_spent, times)


def _turn(
    timed: Timed, bare: Callable[[int, str], tuple[float, float]], ranks: int, arguments: tuple[str, ...], folder: str
) -> tuple[float, ...]:
    """Seconds of both, as `Floor` has them."""
    seconds, spent, report = timed(ranks, arguments)
    bare_job, bare_spent = bare(ranks, folder)
    bare_seconds = float(Path(folder, "seconds").read_text())
    return seconds, bare_job, report["host"]["wall_seconds"], bare_seconds, spent, bare_spent


def _sent(folder: Path, ranks: int) -> tuple[int, int]:
    """(messages, bytes) of all ranks, collectives apart."""
    messages = nbytes = 0
    for rank in range(ranks):
        events = array("q")
        events.frombytes((folder / str(rank)).read_bytes())
        sizes = [size for kind, size in zip(events[::FIELDS], events[3::FIELDS], strict=True) if kind == SEND]
        messages, nbytes = messages + len(sizes), nbytes + sum(sizes)
    return messages, nbytes


def as_json(floor: Floor) -> dict[str, Any]:
    return {"schema": 1, **asdict(floor), "ratio": floor.ratio}


def print_floor(floor: Floor, form: str = "table") -> None:
    inside = floor.run_seconds / floor.bare_seconds
    of_processors = floor.job_cpu_seconds / floor.bare_job_cpu_seconds
    rows = [
        [name, *(Cell(number, f"{number:.2f}") for number in numbers)]
        for name, *numbers in (
            ("the job", floor.job_seconds, floor.bare_job_seconds, floor.ratio),
            ("without its start", floor.run_seconds, floor.bare_seconds, inside),
            ("the job, processors", floor.job_cpu_seconds, floor.bare_job_cpu_seconds, of_processors),
        )
    ]
    caption = f"{' '.join(floor.arguments)}: {floor.ranks} ranks, {floor.messages:,} messages, {floor.bytes:,} bytes"
    caption += f"; medians of {floor.turns} turns" * (floor.turns > 1)
    put([caption, Grid(("", "seconds", "bare mpi4py", "ratio"), rows)], form)
