"""Locals are named after what they hold; a class, or a type's other name, has one meaning in the whole house."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import meshrt.mesh

ROOT = Path(__file__).parents[2]
FOLDERS = ("ci", "examples", "launch", "meshrt", "models", "programs", "studies", "tests")
SAY_NOTHING = {"found", "one", "told", "asked", "known", "there", "here", "some", "thing", "what"}
OF_THEIR_OWN = {  # what they hold has no other name
    ("meshrt/csl/language/builtins.py", "one"),  # the number
    ("models/stories.py", "thing"),  # of a story
    ("meshrt/commands/show.py", "what"),  # its option
}
# A comment, or a text with its prefix.
TEXTS = re.compile(
    r"""#.*|([A-Za-z]{0,2})("{3}(?:[^\\]|\\[\s\S])*?"{3}|'{3}(?:[^\\]|\\[\s\S])*?'{3}|"(?:[^"\\\n]|\\[\s\S])*"|'(?:[^'\\\n]|\\[\s\S])*')"""
)
PYTHON = "#!/usr/bin/env python3"  # how commands in ci/ begin that have no ending
# Nodes of CSL's grammar are only ever named n.NAME or nodes.NAME: its words are not the house's.
GRAMMAR = "meshrt/csl/syntax/nodes.py"
TWICE = {  # classes and types' names that several files define, and why
    "Array": "NumPy's, wherever it is",
    "Arrays": "a list of them, one for each device that a rank hosts",
    "Cores": "what a rank hosts of a machine made of cores: of the mesh, or NeuronCores",
    "Index": "which numbers of an axis: a slice, or an array of them",
    "Rotary": "cosines and sines of rotary embeddings",
    "Route": "the mesh's; and a name that host scripts of Cerebras's SDK import (csl/standin_layout.py)",
    "par_dim": "NKI's name, of meshrt/neuron and of meshrt/nki",
}


@dataclass(frozen=True)
class Names:
    """What a file has of names that these tests ask for."""

    locals: set[str]  # that say nothing
    types: list[str]
    takes_nodes: bool  # imports a node of CSL by its own name


@cache
def house() -> dict[str, Names]:
    """The names of each file. Its tree is not kept: the garbage collector would look through all of them each time."""
    return {
        str(path.relative_to(ROOT)): names_of(path.read_text(), folder != "tests")
        for folder in FOLDERS for path in (ROOT / folder).rglob("*")
        if path.suffix == ".py"
        or (folder == "ci" and not path.suffix and path.is_file() and path.read_text().startswith(PYTHON))
    }  # fmt: skip


def names_of(text: str, types: bool) -> Names:
    """`types`: those, too. Most files have the words in texts and comments alone, and of these no tree is made, or
    only its top is looked at."""
    words, nodes = SAY_NOTHING & words_of(text), "meshrt.csl.syntax.nodes"
    tree = ast.parse(text if words or types or nodes in text else "")
    imported = {node.module for node in nodes_of(tree) if isinstance(node, ast.ImportFrom)} if nodes in text else set()
    return Names(words and words & {*locals_of(tree)}, [*types_of(tree)] if types else [], nodes in imported)


def words_of(text: str) -> set[str]:
    """All words of a file but for those in comments and texts: among them is each name that it binds."""
    return {*re.findall(r"\w+", TEXTS.sub(code_of, text))}


def code_of(match: re.Match[str]) -> str:
    """Of a text: what may have code in braces."""
    return match[0] if "f" in (match[1] or "").lower() else " "


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """As ast.walk, in any order and a third of its time."""
    ahead = [tree]
    while ahead:
        node = ahead.pop()
        yield node
        for value in vars(node).values():
            if isinstance(value, list):
                ahead += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                ahead.append(value)


def locals_of(tree: ast.AST) -> Iterator[str]:
    """Names that functions, comprehensions and modules bind; not fields of classes, which their users see."""
    names, fields = list[ast.Name | ast.arg](), set[int]()
    for node in nodes_of(tree):
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
            names.append(node)
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.AnnAssign | ast.Assign):
                    fields |= {
                        id(target) for target in (line.targets if isinstance(line, ast.Assign) else [line.target])
                    }
    for node in names:
        if isinstance(node, ast.arg):
            yield node.arg
        elif id(node) not in fields:
            yield node.id


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_local_has_a_name_that_says_nothing(folder: str) -> None:
    quaint = {(file, name) for file, names in house().items() if file.startswith(f"{folder}/") for name in names.locals}
    assert quaint <= OF_THEIR_OWN


def test_it_finds_them() -> None:
    text = "class Cell:\n    what: str\ndef f(told):\n    found = [one for one in told]\n    return found\n"
    assert {*locals_of(ast.parse(text))} == {"told", "found", "one"}
    assert names_of(text, False).locals == {"told", "found", "one"}


def test_words_in_texts_and_comments_bind_nothing() -> None:
    text = "a = 'one # b' + \"it's\" + r\"\"\"some\nthing\"\"\"  # told 'c'\nd = f'{[told for told in a]}' '\\'found'\n"
    text += "what = 3\n"
    assert words_of(text) == {"a", "d", "f", "for", "in", "told", "what", "3"}


def types_of(tree: ast.Module) -> Iterator[str]:
    """Classes of a file, and what it calls other types at its top: capital letters begin these, and others follow."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and re.fullmatch("[A-Z][a-z][A-Za-z]*", target.id):
                    yield target.id


def test_no_type_has_two_meanings() -> None:
    files = defaultdict(set)
    for file, names in house().items():
        own = file == GRAMMAR or file.startswith("tests/")  # a test's stand-ins are named after what they stand for
        for name in names.types if not own else ():
            files[name].add(file)
    assert {name for name, where in files.items() if len(where) > 1} == {*TWICE}


def test_nodes_of_csl_are_named_as_such() -> None:
    assert not [file for file, names in house().items() if names.takes_nodes]


def test_it_finds_types() -> None:
    text = "class Cell:\n    class Inner: ...\nRow = tuple[int, int]\nRows: TypeAlias = list[Row]\nHIGH = T = few = 3\n"
    assert [*types_of(ast.parse(text))] == ["Cell", "Row", "Rows"]


def test_what_a_program_imports_from_the_mesh_is_what_its_modules_define() -> None:
    """meshrt.mesh says each name three times: for types, for `import *`, and where it is when it is asked for."""
    for_types = {
        alias.name
        for node in nodes_of(ast.parse((ROOT / "meshrt/mesh/__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("meshrt.")
        for alias in node.names
    }
    names = meshrt.mesh.__all__
    assert for_types == {*names} and sorted(names) == names
    for name in names:
        assert getattr(meshrt.mesh, name).__name__ == name
        assert find_spec(f"meshrt.mesh.{name}") is None, "a module of that name would take its place"
    with pytest.raises(AttributeError, match="no attribute 'exchanges'"):
        _ = meshrt.mesh.exchanges
