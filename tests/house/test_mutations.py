"""The table of ci/mutations.py fits the source and the tests: each can be made, and is tried on tests."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import sys
import tomllib
from functools import cache
from itertools import groupby
from pathlib import Path
from unittest import mock

import pytest

from meshrt import sources

CHECKOUT = Path(__file__).resolve().parents[2]
TABLE = runpy.run_path(str(CHECKOUT / "ci" / "mutations.py"))


def test_every_mutation_can_be_made_and_is_python() -> None:
    assert len(set(TABLE["MUTATIONS"])) == len(TABLE["MUTATIONS"]) >= 60
    for file, mutations in groupby(TABLE["MUTATIONS"], key=lambda mutation: mutation.file):
        text = (CHECKOUT / file).read_text()
        parsed = None if file.endswith((".c", ".h")) else ast.dump(ast.parse(text))
        for mutation in mutations:
            assert mutation.made(text) != text, mutation
            assert parsed is None or ast.dump(ast.parse(mutation.made(text))) != parsed, mutation


@cache
def text_of(path: str) -> str:
    return (CHECKOUT / path).read_text()


def test_every_mutation_has_tests() -> None:
    for mutation in TABLE["MUTATIONS"]:
        assert mutation.test_files
        for test in mutation.test_files:
            path, _, name = test.partition("::")
            assert re.search(rf"^def {name or 'test_'}", text_of(path), re.MULTILINE), test


@pytest.mark.parametrize("text", ["", "x = 1; x = 1"])
def test_a_text_that_is_not_there_once_is_an_error(text: str) -> None:
    mutation = TABLE["Mutation"]("meshrt/mesh/wires/fabric.py", "x = 1", "x = 2", "test_fabric.py")
    with pytest.raises(ValueError, match=r"meshrt/mesh/wires/fabric\.py has 'x = 1' [02] times, not once"):
        mutation.made(text)


def test_a_mutation_is_compiled_with_every_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)  # which the script sets
    compiler = f"{sys.executable} -c 'import sys; open(sys.argv[-1], \"w\").write(repr(sys.argv))'"
    with mock.patch.dict(os.environ, {"CC": compiler}):
        shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
        modules = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
        targets = [tmp_path / f"{module['name'].replace('.', '/')}.abi3.so" for module in modules]
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / "meshrt" / "sources.py", tmp_path / "meshrt")
        source = tmp_path / "meshrt" / "ranks" / "any.c"
        source.parent.mkdir(exist_ok=True)
        source.write_text("/* a core that is not of its sources is refused */")
        runpy.run_path(str(CHECKOUT / "ci" / "mutants"))["compile_modules"](tmp_path)
        defined = f"-DMESHRT_SOURCES={sources.checksum.__wrapped__(tmp_path / 'meshrt')}"
        for target, module in zip(targets, modules, strict=True):
            assert all(word in target.read_text() for word in [*module["sources"], defined])
    compiled = [source for module in modules for source in module["sources"]]
    assert all(mutation.file in compiled for mutation in TABLE["MUTATIONS"] if mutation.file.endswith(".c"))
