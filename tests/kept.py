"""Generations that are ended once some states are kept, for the tests of going on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshrt.programs.generation import generate


class Stopped(BaseException):
    """As sudden as a test can be."""


def stop_after(monkeypatch: pytest.MonkeyPatch, states: int) -> None:
    """End the next generation on all ranks once so many states are kept."""
    save, left = generate.save, [states]

    def saved(*arguments: Any) -> None:
        save(*arguments)
        left[0] -= 1
        if not left[0]:
            raise Stopped

    monkeypatch.setattr(generate, "save", saved)


def outside_host(report: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in report.items() if key != "host"})


def rewrite(state: Path, whole: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Write the whole index of a state with a change, and with a digest that is right."""
    index = json.loads(whole)["state"]
    change(index)
    digest = hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()
    (state / "state.json").write_text(json.dumps({"digest": digest, "state": index}))


def changes(whole: str) -> list[Callable[[dict[str, Any]], object]]:
    """Of the index of a state: whichever fact is gone or is something else."""
    edits: list[Callable[[dict[str, Any]], object]] = [
        lambda index: index.pop("files"),
        lambda index: index.pop("facts"),
        lambda index: index.update(files=[{"name": "../other", "digest": "", "places": {}}]),
        lambda index: index.update(files=7),
        lambda index: index.update(facts=[]),
    ]
    for name in json.loads(whole)["state"]["facts"]:
        edits.append(lambda index, name=name: index["facts"].pop(name))
        edits += [
            lambda index, name=name, to=to: index["facts"].update({name: to}) for to in (None, "x", -1, [[]], {"a": 1})
        ]
    return edits
