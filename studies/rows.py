"""A published number beside an emulated one, and what a table of them comes to."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from meshrt.studies.sweep import Outcome, RunJob

GOAL, MEDIAN_GOAL = 1.2, 1.05  # how far off each of WaferLLM's own cells may be, either way, and their median

Emulate = Callable[[RunJob], Outcome]


@dataclass(frozen=True)
class Finding:
    """Something that a paper says, of a model if `model` is one, and what was found. `holds` is None where nothing was,
    or where it is within the noise."""

    where: str
    model: str | None
    says: str
    found: str
    holds: bool | None

    def json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "model" or value is not None}


@dataclass(frozen=True)
class PaperRow:
    """One cell of a table. `emulated` is None where nothing was: `note` says why, or how it was emulated.

    `derived` marks what follows from another cell's emulated time and is no measurement of its own.
    """

    table: str
    subject: str  # the model, or the size of a product
    system: str
    column: str
    unit: str
    published: float | None
    emulated: float | None = None
    cycles: float | None = None  # that the emulation took, of one prefill, token or product
    memory_bytes: int | None = None  # of the fullest core
    note: str = ""
    derived: bool = False

    @property
    def ratio(self) -> float | None:
        """Emulated over published; None where either is missing, or nothing was published to divide by (0)."""
        if not self.published or self.emulated is None:
            return None
        return self.emulated / self.published

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def off(ratio: float) -> float:
    """How far off a ratio is, whichever way: 2 for twice as much and for half of it."""
    return max(ratio, 1 / ratio) if ratio > 0 else float("inf")


def summary(rows: Sequence[PaperRow]) -> list[dict[str, Any]]:
    """For each system, of cells that are no derivations: how many, how many emulated, median and worst ratio."""
    summaries = []
    for system in dict.fromkeys(row.system for row in rows if row.system != "a100"):
        cells = [row for row in rows if row.system == system and not row.derived]
        compared = [(row, ratio) for row in cells if (ratio := row.ratio) is not None]
        ratios = [ratio for _, ratio in compared]
        worst = max(compared, key=lambda cell: off(cell[1]), default=None)
        summaries.append(
            {
                "system": system,
                "cells": len(cells),
                "emulated": sum(row.emulated is not None for row in cells),
                "compared": len(compared),
                "median_ratio": median(ratios) if ratios else None,
                "median_off": median(map(off, ratios)) if ratios else None,
                "worst_ratio": worst[1] if worst else None,
                "worst_cell": f"table {worst[0].table}, {worst[0].subject}, {worst[0].column}" if worst else None,
                "within_goal": sum(off(ratio) <= GOAL for ratio in ratios),
                "goal": GOAL,
            }
        )
    return summaries
