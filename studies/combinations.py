"""A program for every combination of its options' values: what runs, the table of it, the picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshrt.emulate import sweep
from meshrt.errors import UsageError, nearest
from meshrt.machine import find_machine
from meshrt.program import load_program, named, settings_of
from meshrt.ranks.files import check_target, write_file
from meshrt.reports.report import Report
from meshrt.studies.bounds import find_number
from meshrt.studies.files import check_matplotlib
from meshrt.studies.plmr.subject import value_of

MOST_RUNS = 1000

Axes = dict[str, list[Any]]


def axes(program: str, on: str | None, choices: Sequence[str]) -> Axes:
    """'m=64,128' -> {"m": [64, 128]}, of the options of a program and of its machine, also by the words that all
    machines understand. UsageError.
    """
    name, fixed = named(program)
    loaded = load_program(name, on)
    options = settings_of(loaded.machine) | {
        option.name: option for option in loaded.options if option.name not in fixed
    }
    for word, of_machine in find_machine(loaded.machine).SHARED.items():
        options.setdefault(word, options[of_machine])
    chosen: Axes = {}
    for text in choices:
        key, equals, values = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not values:
            raise UsageError(f"--set {text!r}: give an option and its values, such as m=64,128")
        if key not in options:
            hint = nearest(key, options, f"it has {', '.join(sorted(options))}")
            raise UsageError(f"--set {text!r}: {program} has no option {key!r}: {hint}")
        if key in chosen:
            raise UsageError(f"--set {text!r}: {key} is there twice; give all its values at once")
        parts = values.split(";" if ";" in values else ",")
        chosen[key] = [options[key].check(value_of(options[key], part.strip())) for part in parts]
    runs = 1
    for all_values in chosen.values():
        runs *= len(all_values)
    if runs > MOST_RUNS:
        raise UsageError(f"{runs} runs: at most {MOST_RUNS} in one sweep; give fewer values")
    return chosen


def run(program: str, on: str | None, chosen: Axes, payload: bool, comm: Any) -> list[Report]:
    """All runs, in the order of the table."""
    return sweep(program, on=on, payload=payload, comm=comm, **chosen)


def table(chosen: Axes, reports: Sequence[Report], show: str | None) -> tuple[list[str], list[list[Any]]]:
    """Header and rows: the options that change, the numbers, and why a run was refused, where one was. UsageError."""
    shown = [part.strip() for part in show.split(",")] if show else [*find_machine(reports[0].machine).SUMMARY]
    changing = [name for name, values in chosen.items() if len(values) > 1]
    settings: list[dict[str, Any]] = [{}]
    for name, values in chosen.items():
        settings = [setting | {name: value} for setting in settings for value in values]
    refused = any(report.refused for report in reports)
    rows = []
    for setting, report in zip(settings, reports, strict=True):
        numbers = [None if report.refused else find_number(name, report.data) for name in shown]
        why = [] if not refused else [report.refused and _why(report.refused)]
        rows.append([*(setting[name] for name in changing), *numbers, *why])
    return [*changing, *shown, *(["refused"] if refused else [])], rows


def _why(text: str) -> str:
    """What was asked for, and what would do: the first and the last clause. All of it is in the JSON."""
    clauses = text.split("; ")
    return "; ".join(dict.fromkeys((clauses[0], clauses[-1])))


def check_picture(path: str, chosen: Axes) -> None:
    """UsageError, before any run, where a picture could not be made after it."""
    if Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--png {path}: the name ends with .png, .svg or .pdf")
    check_matplotlib()
    check_target("--png", path)
    if not any(len(values) > 1 for values in chosen.values()):
        raise UsageError("--png draws over an option that changes: give one of them several values")


def draw(path: str, header: Sequence[str], rows: Sequence[Sequence[Any]], options: int) -> None:
    """The picture as a file."""
    import io

    image = io.BytesIO()
    figure_of(header, rows, options).savefig(image, format=Path(path).suffix.removeprefix(".") or "png", dpi=120)
    write_file("--png", path, lambda stream: stream.write(image.getvalue()))


def figure_of(header: Sequence[str], rows: Sequence[Sequence[Any]], options: int) -> Any:
    """A panel a number, over the option that changes fastest, with a line for each combination of the others.

    Its values stand in the order in which they were given, also where a line has none of some of them.
    """
    from matplotlib.figure import Figure

    values = [*dict.fromkeys(str(row[options - 1]) for row in rows)]
    numbers = [at for at in range(options, len(header)) if header[at] != "refused"]
    figure = Figure(figsize=(4 * len(numbers), 3.6), layout="constrained")
    lines: dict[tuple[Any, ...], list[Sequence[Any]]] = {}
    for row in rows:
        lines.setdefault(tuple(row[: options - 1]), []).append(row)
    for panel, at in zip(figure.subplots(1, len(numbers), squeeze=False)[0], numbers, strict=True):
        for names, points in lines.items():
            drawn = [point for point in points if point[at] is not None]
            at_values = [values.index(str(point[options - 1])) for point in drawn]
            panel.plot(at_values, [point[at] for point in drawn], "o-", label=", ".join(map(str, names)))
        panel.set_xticks(range(len(values)), values)
        panel.set_title(header[at])
        panel.set_xlabel(header[options - 1])
        panel.set_ylim(bottom=0)
    if options > 1:
        figure.axes[0].legend(title=", ".join(header[: options - 1]))
    return figure
