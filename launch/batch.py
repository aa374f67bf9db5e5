"""A job for a cluster that has a queue: what every batch system is asked for, each in its own words."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshrt.errors import UsageError
from meshrt.launch import restarts
from meshrt.launch.job import Job


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """`ranks` processes for each of `runs`, which are arguments of `meshrt`; several runs are an array job.

    None leaves a choice to the cluster. `memory` is MiB of a node, `time` seconds. Raises UsageError.
    """

    ranks: int
    runs: tuple[tuple[str, ...], ...]
    name: str = "meshrt"
    nodes: int | None = None
    ranks_per_node: int | None = None
    cores_per_node: int | None = None  # None: a core for each rank
    memory: int | None = None
    time: int | None = None
    partition: str | None = None
    account: str | None = None
    output: str | None = None
    restarts: int = 0  # of a run that is lost, from its checkpoint

    def __post_init__(self) -> None:
        for option in ("ranks", "nodes", "ranks_per_node", "cores_per_node", "memory", "time"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise UsageError(f"{option.replace('_', ' ')}: {value} is too few, give at least 1")
        if not self.runs:
            raise UsageError("no run to submit")
        if self.restarts:
            for run in self.runs:
                restarts.check(Job(self.ranks, run))
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]{0,62}", self.name):
            raise UsageError(f"name {self.name!r}: use up to 63 letters, digits, '.', '_' and '-', a letter first")
        for option in ("partition", "account", "output"):
            _check_word(option, getattr(self, option))
        _check_nodes(self)

    @property
    def resumable(self) -> tuple[tuple[str, ...], ...]:
        """The runs; with restarts each goes on from its checkpoint, also when the cluster starts the job again."""
        if not self.restarts:
            return self.runs
        return tuple(restarts.resumed(Job(self.ranks, run)).arguments for run in self.runs)

    @property
    def on_nodes(self) -> tuple[int, ...] | None:
        """Ranks on each node, the fullest first; None where the cluster spreads them."""
        if self.ranks_per_node is not None:
            full, rest = divmod(self.ranks, self.ranks_per_node)
            return (self.ranks_per_node,) * full + ((rest,) if rest else ())
        if self.nodes is not None:
            least, more = divmod(self.ranks, self.nodes)
            return (least + 1,) * more + (least,) * (self.nodes - more)
        return None


def _check_word(option: str, value: str | None) -> None:
    """A batch system splits its directives at spaces and at quotes in ways of its own, so there are none."""
    if value is not None and not re.fullmatch(r"[A-Za-z0-9_./%^+,:@=-]+", value):
        raise UsageError(f"{option} {value!r}: use letters, digits and _ . / % ^ + , : @ = - only")


def _check_nodes(batch: BatchJob) -> None:
    spread = batch.on_nodes
    if spread is None:
        for option in ("memory", "cores_per_node"):
            if getattr(batch, option) is not None:
                raise UsageError(f"--{option.replace('_', '-')} is of a node: give --nodes or --tasks-per-node, too")
        return
    if batch.nodes is not None and batch.nodes > batch.ranks:
        raise UsageError(f"{batch.nodes} nodes for {batch.ranks} ranks: each node needs one, give at most that many")
    if batch.nodes is not None and batch.nodes != len(spread):
        raise UsageError(
            f"{batch.ranks} ranks, {batch.ranks_per_node} on a node, take {len(spread)} nodes, not {batch.nodes}: "
            f"leave out --nodes or --tasks-per-node"
        )
    if batch.cores_per_node is not None and batch.cores_per_node >= spread[0]:
        raise UsageError(
            f"{batch.cores_per_node} cores for {spread[0]} ranks on a node: --cores-per-node is for more ranks than "
            f"cores; without it each rank has one"
        )


def parse_time(text: str) -> int:
    """Seconds of "90" (minutes) or "1:30:00". Raises UsageError."""
    if match := re.fullmatch(r"(\d{1,5}):([0-5]\d):([0-5]\d)", text):
        hours, minutes, seconds = map(int, match.groups())
    elif re.fullmatch(r"\d{1,6}", text):
        hours, minutes, seconds = 0, int(text), 0
    else:
        raise UsageError(f"time {text!r}: give minutes, or hours:minutes:seconds such as 1:30:00")
    return 3600 * hours + 60 * minutes + seconds


def clock_time(seconds: int) -> str:
    """3661 -> "1:01:01", which Slurm and PBS both read as hours, minutes and seconds."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def parse_memory(text: str) -> int:
    """MiB of "500M" or "4G". Raises UsageError."""
    if not (match := re.fullmatch(r"(\d{1,9})([MG])", text)):
        raise UsageError(f"memory {text!r}: give M or G, such as 500M or 4G")
    return int(match[1]) * {"M": 1, "G": 1024}[match[2]]
