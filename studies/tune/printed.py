"""An answer of the autotuner for a person: what was tried, what was chosen and why."""

from collections.abc import Iterator, Sequence
from typing import Any

from meshrt.studies.grid import Cell, Grid, put
from meshrt.units import of, size


def print_answer(report: dict[str, Any], form: str = "table") -> None:
    put(said(report), form)


def said(report: dict[str, Any]) -> Iterator[str | Grid]:
    """All candidates in one table, the pairs that were run in one go in another, and the reasons."""
    device = report["device"]
    memory = of(device["core_memory"] and size(device["core_memory"]))
    yield (
        f"{report['model']} on {device['name']}: {report['prompt_tokens']} prompt tokens,"
        f" {report['new_tokens']} new ones"
    )
    notes = list(
        dict.fromkeys(trial["refused"] for trial in (*report["candidates"], *report["pairs"]) if trial["refused"])
    )
    columns = ("part", "cores", "heads in", "K", f"memory{memory}", "cycles", "a token", "verdict")
    yield Grid(columns, [_line(report, trial, notes) for trial in report["candidates"]], "candidates")
    if report["pairs"]:
        yield "\nIn one go"
        names = list(dict.fromkeys(name for pair in report["pairs"] for name in pair["cycles"] or {}))
        lines = [_pair(pair, names, notes) for pair in report["pairs"]]
        yield Grid(("prefill", "decode", "heads in", "K", *names, "total", "verdict"), lines, "in one go")
    yield from (f"  [{number}] {note}" for number, note in enumerate(notes, 1))
    yield from report["why"]


def _line(report: dict[str, Any], trial: dict[str, Any], notes: list[str]) -> tuple[Any, ...]:
    tokens = [token["cycles"] for token in trial["tokens"]]
    return (
        trial["part"],
        _cores(f"{trial['side']}x{trial['side']}", trial["regions"]),
        groups(trial),
        trial["phases"],
        Cell(trial["memory_bytes"], "" if trial["memory_bytes"] is None else size(trial["memory_bytes"])),
        _cycles(trial["cycles"]),
        Cell(" ".join(map(str, tokens)), " ".join(f"{cycles:,.0f}" for cycles in tokens)),
        _verdict(trial["refused"], is_chosen(report, trial), notes),
    )


def _cycles(count: float | None) -> Cell:
    return Cell(count, "" if count is None else f"{count:,.0f}")


def _pair(pair: dict[str, Any], names: Sequence[str], notes: list[str]) -> tuple[Any, ...]:
    cycles = pair["cycles"] or {}
    return (
        *phase_cores(pair["options"]),
        groups(pair["options"]),
        f"{pair['options']['phases']}, {pair['options']['decode_phases']}",
        *(_cycles(cycles.get(name)) for name in names),
        _cycles(pair["total"] if cycles else None),
        _verdict(pair["refused"], pair["chosen"], notes),
    )


def _verdict(refused: str | None, chosen: bool, notes: list[str]) -> str:
    return f"refused [{notes.index(refused) + 1}]" if refused else "chosen" if chosen else ""


def groups(options: dict[str, Any]) -> str:
    """'1 group' of heads, '2 groups'."""
    return f"{options['head_groups']} group{'s' if options['head_groups'] > 1 else ''}"


def _cores(mesh: str, regions: int) -> str:
    return mesh if regions == 1 else f"{regions} of {mesh}"


def phase_cores(options: dict[str, Any]) -> tuple[str, str]:
    """The cores of prefill and of decode."""
    mesh, regions = options["mesh"], options["regions"]
    return _cores(mesh, regions), _cores(options["decode_mesh"] or mesh, options["decode_regions"] or regions)


def is_chosen(report: dict[str, Any], trial: dict[str, Any]) -> bool:
    """Is this candidate a part of the answer?"""
    choice = report["choice"]
    decodes = trial["part"] == "decode"
    if choice is None or trial["head_groups"] != choice["head_groups"]:
        return False
    if trial["phases"] != choice["decode_phases" if decodes else "phases"]:
        return False
    return _cores(f"{trial['side']}x{trial['side']}", trial["regions"]) == phase_cores(choice)[decodes]


def reasons(report: dict[str, Any]) -> list[str]:
    """How it was measured, what was chosen and why, a line each."""
    layers = report["layers_run"]
    ran = "1 was" if layers == 1 else f"{layers} at most were"
    lines = ["By shape (--payload none)." if layers is None else
             f"By shape (--payload none); of the layers of a region (of {report['layers']} in all) {ran} run, the last"
             " one counts for the others."]  # fmt: skip
    if report["new_tokens"] > 1:
        lines.append(
            "A token was emulated with the contexts at the beginning, middle and end of decode; between those its"
            " cycles are taken to grow linearly (trapezoid rule)."
        )
    lines.append(
        "Groups of the K-trees on lines of more than 16 cores: those that emulated allreduces show to be the fastest."
    )
    if report["choice"] is None:
        return [*lines, "Nothing fits."]
    for part, cores in zip(("prefill", "decode"), phase_cores(report["choice"]), strict=True):
        if any(trial["part"] == part for trial in report["candidates"]):
            lines.append(f"Chosen for {part}: {cores} cores{_compared(report, part)}")
    total, seconds = report["cycles"]["total"], report["seconds"]
    for pair in report["pairs"]:
        if not pair["chosen"] and pair["total"] is not None:
            prefill, decode = phase_cores(pair["options"])
            location = f"all on {prefill}" if prefill == decode else f"{prefill}, then {decode},"
            lines.append(f"In one go, {location} takes {pair['total'] / total - 1:+.1%} cycles, the move included.")
    rate = report["new_tokens"] / seconds
    return [*lines, f"{total:,.0f} cycles, {1e3 * seconds:,.3f} ms: {rate:,.1f} new tokens a second, end to end."]


def _compared(report: dict[str, Any], part: str) -> str:
    """What the alternatives would take: the next best cores, and other groups and trees on the same cores."""
    fit = [trial for trial in report["candidates"] if trial["part"] == part and trial["cycles"] is not None]
    best = next(trial for trial in fit if is_chosen(report, trial))
    same_cores = [trial for trial in fit if (trial["side"], trial["regions"]) == (best["side"], best["regions"])]
    names = {
        id(trial): f"{groups(trial)}, K = {trial['phases']}"
        if trial in same_cores
        else _cores(f"{trial['side']}x{trial['side']}", trial["regions"])
        for trial in fit
    }
    elsewhere = sorted(
        (trial for trial in fit if trial not in same_cores),
        key=lambda trial: float(trial["cycles"]),
    )
    others = [*elsewhere[:1], *(trial for trial in same_cores if trial is not best)]
    changes = "; ".join(f"{names[id(trial)]} {trial['cycles'] / best['cycles'] - 1:+.1%}" for trial in others)
    only = "" if elsewhere else ", the only ones tried that fit"
    return f", {groups(best)}, K = {best['phases']}{only}" + (f" ({changes})" if others else "")
