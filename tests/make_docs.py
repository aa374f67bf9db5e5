"""What is generated from tables: `python tests/make_docs.py` writes it, tests/reports/test_fields.py compares.

meshrt/schema/report.json    the JSON schema of reports, from the machines' fields.py
docs/machine.md              its table of counters, from there as well
docs/options.md              what every setting moves, from tests/settings.py
docs/api.md, glossary.md     from docstrings, and from meshrt/reports/words.py (make_api.py)
docs/files.md                from the first words of each file (make_files.py)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from device_settings import DEVICES, HOW, NO_EFFECT, ON, PAYLOAD
from device_settings import MACHINES as OPTIONS
from make_api import api, glossary
from make_files import files
from settings import BASE, REFUSED, ROWS, Row

from meshrt.arm.device import ArmDevice
from meshrt.gpu.device import GpuDevice
from meshrt.mesh.device import Device
from meshrt.neuron.device import NeuronDevice
from meshrt.program import load_program
from meshrt.reports.fields import KINDS, MODELLED, TIMED, Field
from meshrt.reports.kinds import fields_of, tally_of

ROOT = Path(__file__).parents[1]
# Of each machine, what its fields.py does not say: the class of its devices; numbers that are those of the whole run
# alone; and keys of its own that its reports have (`Measured.more`).
OF = {"mesh": Device, "neuron": NeuronDevice, "gpu": GpuDevice, "arm": ArmDevice}
OF_THE_RUN: dict[str, tuple[str, ...]] = {"gpu": ("memory_bytes",), "arm": ("memory_bytes", "registers")}
OWN_KEYS: dict[str, dict[str, Any]] = {
    "mesh": {"wafer": {"type": "object"}},
    "gpu": {"static": {"type": "boolean"}, "groups": {"type": "object"}},
}
# What is there only if a run has it: phases have tokens, a wafer has defects, a kernel has a tally.
SOMETIMES = {
    "tokens", "wafer", "attention_heads", "attention_link_bytes", "mlp_link_bytes", "cache_runs", "cache_blocks",
    "dequantized_bytes", "expert_rows", "expert_padding", "dispatched_bytes", "combined_bytes", "dropped_tokens",
    "all_to_all_parts", "swapped_bytes", "intra_node_bytes", "inter_node_bytes", "bubble_seconds",
    "rebuilt", "energy",
}  # fmt: skip


def part(machine: str, phase: bool) -> dict[str, Any]:
    """The schema of `measured`, or of a phase."""
    tree: dict[str, Any] = {}
    for path, row in fields_of(machine).items():
        of_the_run = path.startswith(OF_THE_RUN.get(machine, ()))
        if (of_the_run and phase) or (path == "tokens" and not phase):
            continue
        *stems, leaf = path.split(".")
        at = tree
        for stem in stems:
            at = at.setdefault(stem, {})
        at[leaf] = row
    if (tally := tally_of(machine)) is not None:
        tree["*"] = tally
    if phase:
        tree["name"] = {"type": "string"}
    return node(tree)


def node(tree: Mapping[str, Any] | Field) -> dict[str, Any]:
    if isinstance(tree, Field):
        kind = "number" if tree.kind in (TIMED, MODELLED) and tree.unit not in ("hops", "stages") else "integer"
        says = f"{tree.says}; {tree.unit}; {tree.kind}"
        return {"type": [kind, "null"] if "null: no limit" in tree.says else kind, "minimum": 0, "description": says}
    if "type" in tree:
        return dict(tree)
    named = {name: node(each) for name, each in tree.items() if name != "*"}
    return {
        "type": "object",
        "properties": named,
        "required": [name for name in named if name not in SOMETIMES],
        "additionalProperties": node(tree["*"]) if "*" in tree else False,
    }


def device(machine: str) -> dict[str, Any]:
    names = [field.name for field in fields(OF[machine]) if field.name != "sources"]
    return {"type": "object", "properties": {name: {} for name in names}, "required": names,
            "additionalProperties": False}  # fmt: skip


def report(machine: str) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "schema": {"const": 1},
        "machine": {"const": machine},
        "program": {"type": "string"},
        "arguments": {"type": "object", "description": "the program's options"},
        "device": device(machine),
        "mesh": {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2},
        **OWN_KEYS.get(machine, {}),
        "result": {"type": "object", "description": "what the program says of itself"},
        "measured": part(machine, phase=False),
        "phases": {"type": "array", "items": part(machine, phase=True)},
        **({} if machine == "gpu" else {"runs": runs(machine)}),
        "host": {"type": "object", "required": ["ranks", "wall_seconds"], "description": KINDS["host"]},
        "kinds": {
            "type": "object",
            "propertyNames": {"pattern": r"^(measured\.|phases\.|result$|host$)"},
            "additionalProperties": {"enum": [*KINDS]},
            "description": "what each number is, by its path; " + "; ".join(f"{k}: {v}" for k, v in KINDS.items()),
        },
    }
    required = [name for name in properties if name not in ("wafer", "groups", "runs")]
    return {"title": f"of {machine}", "type": "object", "properties": properties, "required": required,
            "additionalProperties": False}  # fmt: skip


def runs(machine: str) -> dict[str, Any]:
    """The schema of what each of several runs measured."""
    same = f"#/anyOf/{[*OF].index(machine)}/properties"
    each = {name: {"$ref": f"{same}/{name}"} for name in ("measured", "phases")}
    return {
        "type": "array", "minItems": 1,
        "items": {"type": "object", "properties": each, "required": [*each], "additionalProperties": False},
        "description": "what each of several runs measured, each on a machine that is as new; `measured` and `phases`"
        " of the report are their sums, and what is the most of something is that of one of them",
    }  # fmt: skip


def schema() -> str:
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A report of meshrt run --json",
        "description": "Made from the machines' fields.py by tests/make_docs.py.",
        "anyOf": [report(machine) for machine in OF],
    }
    return json.dumps(whole, indent=1) + "\n"


def counters() -> str:
    lines = ["| machine | field | kind | unit | contains | from |", "| --- | --- | --- | --- | --- | --- |"]
    for machine in OF:
        for path, row in fields_of(machine).items():
            scaled = f"{row.kind} ~" if row.scaled else row.kind
            lines.append(f"| {machine} | `{path}` | {scaled} | {row.unit} | {row.says} | {row.source} |")
    return "\n".join(lines)


def between(path: Path, name: str, text: str) -> str:
    """The file with that text between its two comments of that name."""
    begin, end = f"<!-- {name}: made by tests/make_docs.py -->\n", f"\n<!-- end of {name} -->"
    before, rest = path.read_text().split(begin)
    return before + begin + text + end + rest.split(end)[1]


HEAD = """# What every setting moves

Made from tests/settings.py and tests/device_settings.py by tests/make_docs.py. test_settings.py there runs a program
twice for each row, without the change and with it, and compares one number of the reports: nothing that can be set is
without effect. What a run has no use for is refused (code 2), as in the last table. "x" and "+" are exact.

Runs are by shape (`--payload none`) but where "with" has @payload; what begins with @ is of the machine. {tmp} and
{run} are folders.
"""


def options() -> str:
    """docs/options.md."""
    lines = [HEAD]
    for program, rows in ROWS.items():
        name, machine = program.split()
        help_of = {option.name: option.help for option in load_program(name, machine).options}
        lines += [f"## {name}, {machine}", "", f"Runs with {_given(BASE[program])}.", ""]
        lines += ["| option | | change | number | moves | with |", "| --- | --- | --- | --- | --- | --- |"]
        for row in sorted(rows, key=lambda row: [*help_of].index(row.option)):
            flag = f"`--{row.option.replace('_', '-')}`"
            lines.append(f"| {flag} | {_cell(help_of[row.option])} | {_cell(_shown(row.value))} |" + _rest(row))
        lines.append("")
    for machine, rows in OPTIONS.items():
        lines += [f"## Options of every program on {machine}", ""]
        lines += [f"Runs {ON[machine].split()[0]} with {_given(BASE[ON[machine]] | HOW[machine])}.", ""]
        lines += ["| option | change | number | moves | with |", "| --- | --- | --- | --- | --- |"]
        for row in [*rows, *([PAYLOAD] if machine != "gpu" else [])]:
            lines.append(f"| `--{row.option.replace('_', '-')}` | {_cell(_shown(row.value))} |" + _rest(row))
        lines.append("")
    for device, settings in DEVICES.items():
        lines += [f"## Device {device}", "", "| number | change | program | number | moves | with |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        for program, row in settings:
            lines.append(f"| `{row.option}` | {_cell(_shown(row.value))} | {program.split()[0]} |" + _rest(row))
        lines.append("")
    lines += [f"Without effect by nature: {'; '.join(f'`{name}`, {why}' for name, why in NO_EFFECT.items())}.", ""]
    lines += ["## Refused", "", "| program | with | says |", "| --- | --- | --- |"]
    lines += [f"| {program.split()[0]} | {_given(given)} | {says} |" for program, given, says in REFUSED]
    return "\n".join(lines) + "\n"


def _rest(row: Row) -> str:
    why = f"; {row.why}" if row.why else ""
    return f" `{row.metric}` | {_cell(row.relation.says + why)} | {_given(row.base or {})} |"


def _given(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in options.items()).replace("|", "\\|") or "nothing"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return "left away" if value is None else "on" if value is True else "off" if value is False else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def machine_page() -> str:
    path = ROOT / "docs" / "machine.md"
    return between(path, "counters", counters())


GENERATED: dict[Path, Callable[[], str]] = {  # every generated file, and what makes it as it should be
    ROOT / "meshrt" / "schema" / "report.json": schema,
    ROOT / "docs" / "machine.md": machine_page,
    ROOT / "docs" / "options.md": options,
    ROOT / "docs" / "api.md": api,
    ROOT / "docs" / "glossary.md": glossary,
    ROOT / "docs" / "files.md": files,
}


if __name__ == "__main__":
    for path, made in GENERATED.items():
        path.write_text(made())
