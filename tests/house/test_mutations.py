"""The table of ci/mutations.py fits the source and the tests: each can be made, and is tried on tests."""

from __future__ import annotations

import ast
import re
import runpy
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
TABLE = runpy.run_path(str(CHECKOUT / "ci" / "mutations.py"))


def test_every_mutation_can_be_made_and_is_python() -> None:
    assert len(set(TABLE["MUTATIONS"])) == len(TABLE["MUTATIONS"]) >= 60
    for file, ones in groupby(TABLE["MUTATIONS"], key=lambda one: one.file):
        text = (CHECKOUT / file).read_text()
        parsed = None if file.endswith(".c") else ast.dump(ast.parse(text))
        for one in ones:
            assert one.made(text) != text, one
            assert parsed is None or ast.dump(ast.parse(one.made(text))) != parsed, one


@cache
def text_of(path: str) -> str:
    return (CHECKOUT / path).read_text()


def test_every_mutation_has_tests() -> None:
    for one in TABLE["MUTATIONS"]:
        assert one.test_files
        for test in one.test_files:
            path, _, name = test.partition("::")
            assert re.search(rf"^def {name or 'test_'}", text_of(path), re.MULTILINE), test


@pytest.mark.parametrize("text", ["", "x = 1; x = 1"])
def test_a_text_that_is_not_there_once_is_an_error(text: str) -> None:
    one = TABLE["Mutation"]("meshrt/mesh/wires/fabric.py", "x = 1", "x = 2", "test_fabric.py")
    with pytest.raises(ValueError, match=r"meshrt/mesh/wires/fabric\.py has 'x = 1' [02] times, not once"):
        one.made(text)
