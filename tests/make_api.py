"""docs/api.md, from docstrings, and docs/glossary.md, from meshrt/reports/words.py; tests/make_docs.py writes both."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

from meshrt.reports.fields import KINDS
from meshrt.reports.words import WORDS

# What a user's program or script needs: a title -> modules -> names, or of a class those of its methods.
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "From a script or a notebook": {
        "meshrt": ("run", "sweep", "fit", "Report", "Fit"),
        "meshrt.errors": ("MeshrtError", "UsageError", "LimitError", "StallError", "MpiError"),
    },
    "What an option may say": {"meshrt.program": ("AtLeast", "AtMost", "Choices", "Shown")},
    "A block of the mesh": {
        "meshrt.mesh": ("Block", "place", "gather"),
    },
    "Routes, and what goes along them": {
        "meshrt.mesh": (
            "Route",
            "chain",
            "ring",
            "interleaved_ring",
            "multicast",
            "installed",
            "send",
            "receive",
            "transfer",
            "stage",
        ),
    },
    "Collectives": {
        "meshrt.mesh": ("ktree", "pipeline", "allreduce", "crossbar", "take"),
        "meshrt.mesh.collectives.rings": (
            "interleaved_ring",
            "plain_ring",
            "interleaved_rings",
            "plain_rings",
            "Ring",
            "Rings",
        ),
        "meshrt.mesh.collectives.shifts": ("start_shift", "rotate", "align"),
        "meshrt.mesh.collectives.allreduce": ("pattern",),
        "meshrt.mesh.collectives.trees": ("reduce", "reduce_and_spread"),
        "meshrt.mesh.collectives.scatter": ("ring", "around"),
        "meshrt.mesh.collectives.broadcast": ("spreads", "start", "relay", "finish", "start_allgather"),
        "meshrt.mesh.collectives.remap": ("remap",),
        "meshrt.mesh.exchange.exchange": ("exchange",),
        "meshrt.mesh.exchange.legs": ("Transfer",),
    },
    "Other machines": {
        "meshrt.neuron.cores": ("Cores",),
        "meshrt.gpu.gpus": ("Gpus",),
        "meshrt.arm.soc": ("Soc",),
    },
    "Devices": {
        "meshrt.mesh.device": ("Device",),
        "meshrt.neuron.device": ("NeuronDevice",),
        "meshrt.gpu.device": ("GpuDevice",),
        "meshrt.arm.device": ("ArmDevice",),
    },
}
HEAD = """# API

Made from the docstrings by tests/make_docs.py: what a script, a notebook or a program of one's own needs. Arrays of
tiles begin with `[bh, bw]`, the rows and columns of cores of this rank; sizes are in bytes, times in cycles of the
device, unless a name says otherwise. [Programs](programs.md) shows how the parts fit together, [the
tutorial](tutorial.md) step by step.
"""


def api() -> str:
    lines = [HEAD]
    for title, modules in PARTS.items():
        lines += [f"## {title}", ""]
        for module, names in modules.items():
            lines += [f"From `{module}`:", ""]
            for name in names:
                lines += _entry(name, getattr(import_module(module), name))
    return "\n".join(lines).rstrip() + "\n"


def _entry(name: str, target: Any) -> list[str]:
    """A function, or a class with its public methods, its own and those of the classes below it."""
    lines = [f"### {name}", "", *_code(name, target), *_text(target)]
    if not inspect.isclass(target) or issubclass(target, Exception):
        return lines
    members = {}
    for cls in reversed(target.__mro__[:-1]):
        members |= {key: value for key, value in vars(cls).items() if not key.startswith("_") and _has_text(value)}
    for key, value in members.items():
        inner = value.fget if isinstance(value, property) else inspect.unwrap(getattr(value, "__func__", value))
        plain = f"`{name}.{key}`" if isinstance(value, property) else f"`{name}.{key}{_signature(inner, method=True)}`"
        lines += [f"- {plain}: {' '.join(' '.join(_text(inner)).split())}"]
    return [*lines, ""] if members else lines


def _has_text(value: Any) -> bool:
    inner = value.fget if isinstance(value, property) else inspect.unwrap(getattr(value, "__func__", value))
    return bool(inspect.isfunction(inner) and inner.__doc__)


def _code(name: str, target: Any) -> list[str]:
    if inspect.isclass(target) and issubclass(target, Exception):
        return []
    return ["```text", f"{name}{_signature(target)}", "```", ""]


def _signature(target: Any, method: bool = False) -> str:
    try:
        signature = inspect.signature(inspect.unwrap(target))
    except ValueError:
        return "(...)"
    parameters = [*signature.parameters.values()][method:]
    texts = [
        re.sub(r"<function (\w+) at 0x\w+>", r"\1", str(parameter.replace(annotation=parameter.empty)))
        for parameter in parameters
    ]
    first = next((at for at, parameter in enumerate(parameters) if parameter.kind is parameter.KEYWORD_ONLY), None)
    if first is not None and not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        texts.insert(first, "*")
    return f"({', '.join(texts)})"


def _text(target: Any) -> list[str]:
    """Its docstring, without what dataclasses write themselves."""
    text = inspect.getdoc(target) or ""
    if inspect.isclass(target) and text.startswith(f"{target.__name__}("):
        text = ""
    return [*text.replace("<", "\\<").split("\n"), ""] if text else []


def glossary() -> str:
    lines = [
        "# Glossary",
        "",
        "Made from meshrt/reports/words.py by tests/make_docs.py; `meshrt explain WORD` says the same.",
        "",
    ]
    lines += ["| word | meaning |", "| --- | --- |"]
    for word, text in sorted(WORDS.items()):
        lines.append(f"| {word} | {text.replace('|', chr(92) + '|')} |")
    lines += ["", "What a number of a report is, under `kinds` in its JSON:", "", "| kind | meaning |", "| --- | --- |"]
    lines += [f"| {kind} | {text} |" for kind, text in KINDS.items()]
    return "\n".join(lines) + "\n"
