"""What a run costs over its messages alone: the same ranks send the same messages in bare mpi4py, nothing else."""

from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meshrt.studies.bare import FIELDS, SEND
from meshrt.studies.grid import Cell, Grid, put
from meshrt.studies.workloads import Timed


@dataclass(frozen=True)
class Floor:
    """Seconds of whole jobs, and without their start and end; `messages` from rank to rank."""

    ranks: int
    arguments: tuple[str, ...]
    messages: int
    bytes: int
    job_seconds: float
    bare_job_seconds: float
    run_seconds: float
    bare_seconds: float

    @property
    def ratio(self) -> float:
        return self.job_seconds / self.bare_job_seconds


def measure(timed: Timed, bare: Callable[[int, str], float], ranks: int, arguments: tuple[str, ...]) -> Floor:
    """`bare(ranks, folder)` gives the seconds of bare.py on a folder.

    The run is timed as it is, and recorded in another.
    """
    seconds, _, report = timed(ranks, arguments)
    with TemporaryDirectory() as folder:
        timed(ranks, ("bench", "messages", "--to", folder, *arguments))
        messages, nbytes = _sent(Path(folder), ranks)
        bare_job = bare(ranks, folder)
        bare_seconds = float(Path(folder, "seconds").read_text())
    run_seconds = report["host"]["wall_seconds"]
    return Floor(ranks, arguments, messages, nbytes, seconds, bare_job, run_seconds, bare_seconds)


def _sent(folder: Path, ranks: int) -> tuple[int, int]:
    """(messages, bytes) of all ranks, collectives apart."""
    messages = nbytes = 0
    for rank in range(ranks):
        events = array("q")
        events.frombytes((folder / str(rank)).read_bytes())
        sizes = [size for what, size in zip(events[::FIELDS], events[3::FIELDS], strict=True) if what == SEND]
        messages, nbytes = messages + len(sizes), nbytes + sum(sizes)
    return messages, nbytes


def as_json(floor: Floor) -> dict[str, Any]:
    return {"schema": 1, **asdict(floor), "ratio": floor.ratio}


def print_floor(floor: Floor, form: str = "table") -> None:
    inside = floor.run_seconds / floor.bare_seconds
    rows = [
        [name, *(Cell(one, f"{one:.2f}") for one in numbers)]
        for name, *numbers in (
            ("the job", floor.job_seconds, floor.bare_job_seconds, floor.ratio),
            ("without its start", floor.run_seconds, floor.bare_seconds, inside),
        )
    ]
    what = f"{' '.join(floor.arguments)}: {floor.ranks} ranks, {floor.messages:,} messages, {floor.bytes:,} bytes"
    put([what, Grid(("", "seconds", "bare mpi4py", "ratio"), rows)], form)
