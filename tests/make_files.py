"""docs/files.md, what each file is about in its own first words: written by tests/make_docs.py."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("meshrt", "programs", "models", "studies", "launch")
HEAD = """# Files

What each file says of itself in its first words; made by tests/make_docs.py. [The house](house.md) has the folders,
what may import what, and walks through the files.
"""


def first_words(path: Path) -> str:
    """The first paragraph of a module's docstring, or of the comment at the head of a file in C; '' without one."""
    text = path.read_text()
    text = docstring(text) if path.suffix == ".py" else text.removeprefix("/*").partition("*/")[0]
    return " ".join(re.split(r"\n\s*\n", text.strip())[0].split()).removesuffix(":")


def docstring(text: str) -> str:
    """A module's: what stands between quotes before anything else; to parse the file takes far longer."""
    head = re.match(r'(?:#.*\n|\s)*"""([^"\\]*)"""\s*\n', text)
    return inspect.cleandoc(head[1]) if head else ast.get_docstring(ast.parse(text)) or ""


def files() -> str:
    folders: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".c", ".h") and (words := first_words(path)):
                folders[path.parent.relative_to(ROOT).as_posix()].append((path.name, words))
    lines = [HEAD]
    for folder, named in folders.items():
        about = dict(named).get("__init__.py")
        lines += [f"## {folder}/", "", *([about, ""] if about else []), "| file | |", "| --- | --- |"]
        lines += [f"| {name} | {cell(words)} |" for name, words in named if name != "__init__.py"]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")
