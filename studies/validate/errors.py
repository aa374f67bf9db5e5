"""How far what was emulated is from what was measured, of many rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from meshrt.studies.validate.kind import Emulated
from meshrt.studies.validate.rows import USES, MeasuredRow


@dataclass(frozen=True)
class Compared:
    """A row and what the emulator says of it."""

    row: MeasuredRow
    emulated: Emulated

    @property
    def kernel(self) -> str:
        return self.row.kind.kernel(self.row.sizes)

    @property
    def size(self) -> str:
        return self.row.kind.size(self.row.sizes)

    @property
    def ratio(self) -> float | None:
        """Emulated over measured."""
        return None if self.emulated.value is None else self.emulated.value / self.row.measured

    @property
    def error(self) -> float | None:
        return None if self.ratio is None else abs(self.ratio - 1)

    def json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel, "file": self.row.file, "line": self.row.line, "use": self.row.use,
            "sizes": dict(self.row.sizes), "measured": self.row.measured, "unit": self.row.kind.unit,
            "emulated": self.emulated.value, "ratio": self.ratio, "note": self.emulated.note,
        }  # fmt: skip


@dataclass(frozen=True)
class Errors:
    """Of so many rows: the median, the 95th percentile (between rows in a straight line) and the worst of the errors;
    None where none was emulated. `refused` rows have no error."""

    rows: int
    median_error: float | None
    p95_error: float | None
    worst_error: float | None
    median_ratio: float | None
    refused: int

    def json(self) -> dict[str, Any]:
        return asdict(self)


def errors(compared: Sequence[Compared]) -> Errors:
    """Of those rows together."""
    ratios = [pair.ratio for pair in compared if pair.ratio is not None]
    off = [abs(ratio - 1) for ratio in ratios]
    refused = len(compared) - len(off)
    if not off:
        return Errors(len(compared), None, None, None, None, refused)
    return Errors(len(compared), median(off), float(np.percentile(off, 95)), max(off), median(ratios), refused)


def by_use(compared: Sequence[Compared]) -> Mapping[str, list[Compared]]:
    """The rows of each use that there are any of."""
    parts = {use: [pair for pair in compared if pair.row.use == use] for use in USES}
    return {use: part for use, part in parts.items() if part}
