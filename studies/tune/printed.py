"""An answer of the autotuner for a person: what was tried, what was chosen and why."""

from collections.abc import Sequence
from typing import Any

from meshrt.report import show
from meshrt.units import of, size


def print_answer(told: dict[str, Any]) -> None:
    """All candidates in one table, the pairs that were run in one go in another, and the reasons."""
    device = told["device"]
    memory = of(device["core_memory"] and size(device["core_memory"]))
    print(f"{told['model']} on {device['name']}: {told['prompt_tokens']} prompt tokens, {told['new_tokens']} new ones")
    notes = list(dict.fromkeys(one["refused"] for one in (*told["candidates"], *told["pairs"]) if one["refused"]))
    columns = ("", "cores", "heads in", "K", f"memory{memory}", "cycles", "a token", "")
    _print(columns, [_line(told, one, notes) for one in told["candidates"]])
    if told["pairs"]:
        print("\nIn one go")
        names = list(dict.fromkeys(name for pair in told["pairs"] for name in pair["cycles"] or {}))
        lines = [_pair(pair, names, notes) for pair in told["pairs"]]
        _print(("prefill", "decode", "heads in", "K", *names, "total", ""), lines)
    for number, note in enumerate(notes, 1):
        print(f"  [{number}] {note}")
    for line in told["why"]:
        print(line)


def _line(told: dict[str, Any], one: dict[str, Any], notes: list[str]) -> tuple[str, ...]:
    tokens = [f"{token['cycles']:,.0f}" for token in one["tokens"]]
    return (
        one["part"],
        _cores(f"{one['side']}x{one['side']}", one["regions"]),
        groups(one),
        str(one["phases"]),
        "" if one["memory_bytes"] is None else size(one["memory_bytes"]),
        "" if one["cycles"] is None else f"{one['cycles']:,.0f}",
        " ".join(tokens),
        _verdict(one["refused"], is_chosen(told, one), notes),
    )


def _pair(pair: dict[str, Any], names: Sequence[str], notes: list[str]) -> tuple[str, ...]:
    cycles = pair["cycles"] or {}
    return (
        *places(pair["options"]),
        groups(pair["options"]),
        f"{pair['options']['phases']}, {pair['options']['decode_phases']}",
        *(f"{cycles[name]:,.0f}" if name in cycles else "" for name in names),
        f"{pair['total']:,.0f}" if cycles else "",
        _verdict(pair["refused"], pair["chosen"], notes),
    )


def _verdict(refused: str | None, chosen: bool, notes: list[str]) -> str:
    return f"refused [{notes.index(refused) + 1}]" if refused else "chosen" if chosen else ""


def groups(one: dict[str, Any]) -> str:
    """'1 group' of heads, '2 groups'."""
    return f"{one['head_groups']} group{'s' if one['head_groups'] > 1 else ''}"


def _cores(mesh: str, regions: int) -> str:
    return mesh if regions == 1 else f"{regions} of {mesh}"


def places(options: dict[str, Any]) -> tuple[str, str]:
    """The cores of prefill and of decode."""
    mesh, regions = options["mesh"], options["regions"]
    return _cores(mesh, regions), _cores(options["decode_mesh"] or mesh, options["decode_regions"] or regions)


def is_chosen(told: dict[str, Any], one: dict[str, Any]) -> bool:
    """Is this candidate a part of the answer?"""
    choice = told["choice"]
    decodes = one["part"] == "decode"
    if choice is None or one["head_groups"] != choice["head_groups"]:
        return False
    if one["phases"] != choice["decode_phases" if decodes else "phases"]:
        return False
    return _cores(f"{one['side']}x{one['side']}", one["regions"]) == places(choice)[decodes]


def reasons(told: dict[str, Any]) -> list[str]:
    """How it was measured, what was chosen and why, a line each."""
    layers = told["layers_run"]
    lines = ["By shape (--payload none)." if layers is None else
             f"By shape (--payload none); of the layers of a region (of {told['layers']} in all) {layers}"
             f" {'was' if layers == 1 else 'were'} run, the last one counts for the others."]  # fmt: skip
    if told["new_tokens"] > 1:
        lines.append(
            "A token was emulated with the contexts at the beginning, middle and end of decode; between those its"
            " cycles are taken to grow linearly (trapezoid rule)."
        )
    lines.append(
        "Groups of the K-trees on lines of more than 16 cores: those that emulated allreduces show to be the fastest."
    )
    if told["choice"] is None:
        return [*lines, "Nothing fits."]
    for part, cores in zip(("prefill", "decode"), places(told["choice"]), strict=True):
        if any(one["part"] == part for one in told["candidates"]):
            lines.append(f"Chosen for {part}: {cores} cores{_compared(told, part)}")
    total, seconds = told["cycles"]["total"], told["seconds"]
    for pair in told["pairs"]:
        if not pair["chosen"] and pair["total"] is not None:
            first, then = places(pair["options"])
            where = f"all on {first}" if first == then else f"{first}, then {then},"
            lines.append(f"In one go, {where} takes {pair['total'] / total - 1:+.1%} cycles, the move included.")
    rate = told["new_tokens"] / seconds
    return [*lines, f"{total:,.0f} cycles, {1e3 * seconds:,.3f} ms: {rate:,.1f} new tokens a second, end to end."]


def _compared(told: dict[str, Any], part: str) -> str:
    """What the alternatives would take: the next best cores, and other groups and trees on the same cores."""
    fit = [one for one in told["candidates"] if one["part"] == part and one["cycles"] is not None]
    best = next(one for one in fit if is_chosen(told, one))
    here = [one for one in fit if (one["side"], one["regions"]) == (best["side"], best["regions"])]
    names = {
        id(one): f"{groups(one)}, K = {one['phases']}"
        if one in here
        else _cores(f"{one['side']}x{one['side']}", one["regions"])
        for one in fit
    }
    elsewhere = sorted((one for one in fit if one not in here), key=lambda one: float(one["cycles"]))
    others = [*elsewhere[:1], *(one for one in here if one is not best)]
    told_of = "; ".join(f"{names[id(one)]} {one['cycles'] / best['cycles'] - 1:+.1%}" for one in others)
    only = "" if elsewhere else ", the only ones tried that fit"
    return f", {groups(best)}, K = {best['phases']}{only}" + (f" ({told_of})" if others else "")


def _print(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, column in enumerate(columns):
        left = at in (0, len(columns) - 1)
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    for line in lines:
        table.add_row(*(cell.replace("[", r"\[") for cell in line))
    show(table)
