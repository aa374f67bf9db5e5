"""Rows of CSV files, each told by its header which kind of measurement it has."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from meshrt.errors import UsageError
from meshrt.studies.validate.kind import MeasurementKind, Sizes, word

USES = ("check", "fit", "outlier", "lone")  # constants come from `fit` rows alone; `check` is what has no use
DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class MeasuredRow:
    """One measurement and where it stands."""

    kind: MeasurementKind
    file: str
    line: int
    sizes: Sizes
    measured: float
    use: str


def read_rows(path: str | Path, kinds: Sequence[MeasurementKind]) -> list[MeasuredRow]:
    """All rows of a file. UsageError where it cannot be read, is of no kind, or a cell is not what it should be."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            return list(_rows(str(path), csv.DictReader(stream), kinds))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"--data {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _rows(path: str, reader: "csv.DictReader[str]", kinds: Sequence[MeasurementKind]) -> Iterator[MeasuredRow]:
    of_file = _kinds(path, reader.fieldnames or (), kinds)
    for cells in reader:
        where = f"--data {path}, line {reader.line_num}"
        if None in cells or None in cells.values():
            raise UsageError(f"{where}: it has not as many cells as the header, {len(reader.fieldnames or ())}")
        use = cells.get("use", "check")
        if use not in USES:
            raise UsageError(f"{where}: use is {use!r}; there are {', '.join(USES)}")
        for kind in of_file:
            sizes = {}
            for column, read in {**kind.columns, kind.measured: _number}.items():
                try:
                    sizes[column] = read(cells[column])
                except ValueError as error:
                    raise UsageError(f"{where}, {column}: {error}") from None
            yield MeasuredRow(kind, Path(path).name, reader.line_num, sizes, sizes.pop(kind.measured), use)


def _kinds(path: str, header: Sequence[str], kinds: Sequence[MeasurementKind]) -> list[MeasurementKind]:
    """Those that the file's columns are of: more than one where a line has more than one measurement."""
    if not header:
        raise UsageError(f"--data {path}: it is empty; its first line has to name the columns")
    if len(set(header)) < len(header):
        raise UsageError(f"--data {path}: a column is there twice: {','.join(header)}")
    if fitting := [kind for kind in kinds if set(header) - {"use"} == set(kind.header)]:
        return fitting
    choices = "; ".join(f"{','.join(kind.header)} ({kind.name})" for kind in kinds)
    raise UsageError(f"--data {path}: no kind of measurement has the columns {','.join(header)}; there are {choices}")


def _number(text: str) -> float:
    """What was measured. ValueError."""
    try:
        number = float(word(text))
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not isfinite(number) or number <= 0:
        raise ValueError(f"{text} is not a time: it has to be more than 0")
    return number
