"""Many runs of programs: each is emulated whole by one rank, and the ranks share them out.

A run's report is the same on any number of ranks, so a sweep on several ranks is faster and gives the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from meshrt.emulate import emulate
from meshrt.errors import LimitError, in_full
from meshrt.given import Own
from meshrt.machine import find_machine, machine_of
from meshrt.program import Program, load_program, program_of
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.ranks.handout import gathered, handed_out
from meshrt.units import duration


@dataclass(frozen=True)
class RunJob:
    """One run: a program (packaged name, FILE.py or function), its options, the machine.

    `mesh` is width and height, of other machines how many and 1; None: the program's own. `static` is for GPUs.
    `advised`: where it does not fit, what would do is looked for, too, which takes about as long as the run by shape.
    """

    program: str | Own
    mesh: tuple[int, int] | None
    device: Any  # of any machine, which is where it runs
    arguments: Mapping[str, Any] = field(default_factory=dict)
    payload: bool = False
    static: bool = False
    advised: bool = False

    def load(self) -> Program:
        """The program, for the kind of machine that the device is. UsageError."""
        on = machine_of(self.device)
        return load_program(self.program, on) if isinstance(self.program, str) else program_of(self.program, on)


@dataclass(frozen=True)
class Outcome:
    """What became of a run: its report, or why the machine refused it."""

    report: dict[str, Any] | None
    refused: str | None = None
    seconds: float = 0.0  # the host's


def sweep(
    comm: Any, jobs: Sequence[RunJob], console: Console, label: str = "runs",
    keep: Callable[[int, Outcome], None] | None = None,
) -> list[Outcome]:  # fmt: skip
    """Run all jobs; their outcomes in order, on every rank. A run over a limit of the machine is an outcome, too.

    `keep(number of the job, outcome)` is called at the rank that ran it, as soon as it has.
    """
    outcomes, start = {}, perf_counter()
    for at in handed_out(comm, len(jobs)):
        outcomes[at] = run_alone(jobs[at])
        if keep:
            keep(at, outcomes[at])
        done = at + 1  # all before it have been taken, if not by this rank
        left = (perf_counter() - start) / done * (len(jobs) - done)
        console.progress(f"{label}, {duration(left)} left", done, len(jobs))
    console.clear()
    all_outcomes: dict[int, Outcome] = {}
    for part in gathered(comm, outcomes):
        all_outcomes |= part
    return [all_outcomes[at] for at in range(len(jobs))]


def run_alone(job: RunJob) -> Outcome:
    """Emulate one run in this process."""
    start = perf_counter()
    program = job.load()
    size = job.mesh if program.machine == "mesh" or job.mesh is None else job.mesh[0]
    settings: dict[str, Any] = {find_machine(program.machine).SHARED["size"]: size, "device": job.device}
    if job.static:
        settings["static"] = True
    try:
        report = emulate(Alone(), Board.alone(), program, job.arguments, payload=job.payload, **settings)
    except LimitError as error:
        return Outcome(None, in_full(error) if job.advised else str(error), perf_counter() - start)
    return Outcome(report, None, perf_counter() - start)
