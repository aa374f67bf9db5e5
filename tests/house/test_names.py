"""Locals are named after what they hold."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("launch", "meshrt", "models", "programs", "studies")
SAY_NOTHING = {"found", "one", "told", "asked", "known", "there", "here", "some", "thing", "what"}
OF_THEIR_OWN = {  # what they hold has no other name
    ("meshrt/csl/builtins.py", "one"),  # the number
    ("models/stories.py", "thing"),  # of a story
    ("meshrt/commands/show.py", "what"),  # its option
}


def locals_of(tree: ast.AST) -> Iterator[str]:
    """Names that functions, comprehensions and modules bind; not fields of classes, which their users see."""
    fields = {
        id(target)
        for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
        for line in node.body if isinstance(line, ast.AnnAssign | ast.Assign)
        for target in (line.targets if isinstance(line, ast.Assign) else [line.target])
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_local_has_a_name_that_says_nothing(folder: str) -> None:
    quaint = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / folder).rglob("*.py") if not path.is_relative_to(ROOT / ".venv")
        for name in locals_of(ast.parse(path.read_text())) if name in SAY_NOTHING
    }  # fmt: skip
    assert quaint <= OF_THEIR_OWN


def test_it_finds_them() -> None:
    text = "class Cell:\n    what: str\ndef f(told):\n    found = [one for one in told]\n    return found\n"
    assert {*locals_of(ast.parse(text))} == {"told", "found", "one"}
