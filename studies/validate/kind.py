"""A kind of measurement: a CSV's columns, and how what its rows were measured on is emulated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Sizes = Mapping[str, Any]  # a row's cells but for what was measured and `use`, read
BatchRows = tuple[int, ...]  # numbers of rows


@dataclass(frozen=True)
class Emulated:
    """What the emulator says of one row, in the unit of its file. `value` is None where the machine refused the run.

    `note` says why it was, or what is particular about the value.
    """

    value: float | None
    note: str = ""


@dataclass(frozen=True)
class MeasurementKind:
    """Measurements in one form. `columns` are those of its CSV and how a cell is read (ValueError says what is wrong),
    without `use`, the one that was `measured`, and those `beside` it that another kind has measured.

    A row is known to what emulates it by its sizes alone: neither the measured number nor its use gets there.
    """

    name: str
    file: str  # that is shipped, in data/, and run where none is named; "" for none
    columns: Mapping[str, Callable[[str], Any]]
    measured: str
    unit: str
    kernel: Callable[[Sizes], str]  # what a row's error is counted under
    size: Callable[[Sizes], str]  # what rows stand together in the table
    batches: Callable[
        [Sequence[Sizes]], Sequence[tuple[float, BatchRows]]
    ]  # rows that run together; the host's time, about
    emulate: Callable[[Sequence[Sizes]], Sequence[Emulated]]  # of one batch, in this process
    beside: tuple[str, ...] = ()

    @property
    def header(self) -> tuple[str, ...]:
        return (*self.columns, self.measured, *self.beside)


def whole(text: str) -> int:
    """A whole number of 1 or more. ValueError."""
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise ValueError(f"{number} is less than 1")
    return number


def maybe_whole(text: str) -> int | None:
    """As `whole`; None for an empty cell. ValueError."""
    return whole(text) if text.strip() else None


def word(text: str) -> str:
    """A name. ValueError."""
    if not text.strip():
        raise ValueError("it is empty")
    return text.strip()
