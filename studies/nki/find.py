"""Which kernels a checkout has: functions with a decorator of nki's, found without running anything."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from meshrt.errors import UsageError

MARKS = ("nki.jit", "nki.baremetal", "nki.benchmark", "nki.trace", "nki_jit")


@dataclass(frozen=True)
class FoundKernel:
    """A kernel: its file under the checkout, its name; part: it is made to be called by another kernel."""

    path: str
    name: str
    part: bool
    problem: str = ""  # why the file does not parse


def find_kernels(folder: Path) -> list[FoundKernel]:
    """All kernels below a folder, by path and line. UsageError."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; name a checkout of kernels, such as nki-samples")
    kernels: list[FoundKernel] = []
    for path in sorted(folder.rglob("*.py")):
        shown = str(path.relative_to(folder))
        text = path.read_text(errors="replace")
        if "nki" not in text:
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            kernels.append(FoundKernel(shown, "", False, f"line {error.lineno}: {error.msg}"))
            continue
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                if any(mark.startswith(MARKS) for mark in marks):
                    kernels.append(FoundKernel(shown, node.name, any("mode='trace'" in mark for mark in marks)))
    if not kernels:
        raise UsageError(f"{folder} has no kernels: no function below it is decorated by {', '.join(MARKS)}")
    return kernels
