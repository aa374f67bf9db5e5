"""Trials of the autotuner: one setting of prefill or of decode, emulated by shape, and what became of it."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.device import Device
from meshrt.mesh.mesh import Mesh
from meshrt.models.config import Config
from meshrt.programs.mesh.chunks import group_width
from meshrt.ranks.console import Console
from meshrt.studies.sweep import Outcome, RunJob, sweep

PhaseName = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Question:
    """What to tune for: a prompt of so many tokens, and so many new ones, on this machine."""

    model: str
    config: Config
    device: Device
    prompt_tokens: int
    new_tokens: int
    kv: str = "shift"
    dtype: str = "float32"
    layers_run: int | None = None  # of those of a region; the last counts for the others. None: all

    @property
    def contexts(self) -> tuple[int, ...]:
        """Tokens in the cache at which a token is emulated: at the beginning, middle and end of decode."""
        first, last = self.prompt_tokens, self.prompt_tokens + self.new_tokens - 2
        return tuple(sorted({first, (first + last) // 2, last})) if last >= first else ()


@dataclass(frozen=True)
class Setting:
    """One way to run prefill or decode: side x side cores in each region, groups of heads, phases K of the trees."""

    part: PhaseName
    side: int
    regions: int
    head_groups: int
    phases: int


@dataclass(frozen=True)
class Trial:
    """What was measured of a setting; a setting that was refused has no cycles."""

    setting: Setting
    cycles: float | None  # of prefill; or of all tokens that are decoded
    tokens: tuple[tuple[int, float], ...] = ()  # decode: (tokens in the cache, cycles of one more)
    memory: int | None = None  # bytes of the fullest core
    refused: str | None = None

    @property
    def cost(self) -> float:
        """Cycles; infinitely many where the machine refused."""
        return float("inf") if self.cycles is None else self.cycles


Tried = dict[Setting, Trial]


def measure(
    comm: Any, console: Console, question: Question, tried: Tried, settings: Iterable[Setting], label: str
) -> None:
    """Emulate the settings that have not been tried yet, shared out to the ranks; `tried` grows by them."""
    new = [setting for setting in dict.fromkeys(settings) if setting not in tried]
    jobs = [jobs_of(question, setting) for setting in new]
    outcomes = iter(sweep(comm, [job for trial_jobs in jobs for job in trial_jobs], console, label))
    for setting, trial_jobs in zip(new, jobs, strict=True):
        tried[setting] = judge(question, setting, [next(outcomes) for _ in trial_jobs])


def jobs_of(question: Question, setting: Setting) -> list[RunJob]:
    """The runs of a trial: one of a prefill, or one for each context of a decode."""
    options: dict[str, Any] = {"regions": setting.regions, "head_groups": setting.head_groups, "phases": setting.phases}
    if setting.part == "prefill":
        return [llama_job(question, setting.side, prompt_tokens=question.prompt_tokens, max_new_tokens=1, **options)]
    return [llama_job(question, setting.side, context=at, max_new_tokens=2, **options) for at in question.contexts]


def llama_job(question: Question, side: int, **options: Any) -> RunJob:
    """A run of the model by shape on side x side cores."""
    arguments = {"model": question.model, "kv": question.kv, "dtype": question.dtype, "layers_run": question.layers_run}
    return RunJob("llama", (side, side), question.device, arguments | options)


def judge(question: Question, setting: Setting, outcomes: list[Outcome]) -> Trial:
    """A trial from its runs."""
    reports = [outcome.report for outcome in outcomes if outcome.report is not None]
    if len(reports) < len(outcomes):
        return Trial(setting, None, refused=next(outcome.refused for outcome in outcomes if outcome.refused))
    memory = max((report["measured"]["memory_bytes"]["max"] for report in reports), default=None)
    if setting.part == "prefill":
        return Trial(setting, phase_cycles(reports[0])["prefill"], memory=memory)
    spent = [phase_cycles(report)["decode"] for report in reports]
    tokens = tuple(zip(question.contexts, spent, strict=True))
    return Trial(setting, decode_cycles(question, tokens), tokens, memory)


def decode_cycles(question: Question, tokens: tuple[tuple[int, float], ...]) -> float:
    """Cycles of all tokens that are decoded, one fewer than the new ones, since the first comes out of prefill.

    Between the contexts that were emulated, cycles of a token are taken to grow linearly: the trapezoid rule.
    """
    if not tokens:
        return 0.0
    contexts, cycles = zip(*tokens, strict=True)
    return float(np.interp(np.arange(contexts[0], contexts[-1] + 1), contexts, cycles).sum())


def phase_cycles(report: dict[str, Any]) -> dict[str, float]:
    """Cycles on the critical path of a run by phase."""
    return {phase["name"]: float(phase["critical_path"]["cycles"]) for phase in report["phases"]}


def capacity(question: Question, side: int) -> int:
    """The most regions of side x side cores: the wafer has room for so many, and each has a layer at least."""
    device, layers = question.device, question.config.layers
    across = layers if device.width is None else device.width // side
    return min(layers, across * (layers if device.height is None else device.height // side))


def possible_groups(question: Question, side: int) -> list[int]:
    """The numbers of head groups that a square mesh of this side can have."""
    possible = []
    for groups in range(1, question.config.kv_heads + 1):
        with suppress(UsageError):
            group_width(Mesh(side, side), question.config, groups)
            possible.append(groups)
    return possible
