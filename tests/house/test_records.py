"""meshrt.records: classes that are what dataclasses.dataclass makes of them, but for the guard of frozen ones."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from meshrt import records

ROOT = Path(__file__).parents[2]
OPTIONS: list[dict[str, Any]] = [
    {}, {"frozen": True}, {"eq": False}, {"frozen": True, "eq": False}, {"frozen": True, "kw_only": True},
    {"slots": True},
]  # fmt: skip


def _make(dataclass: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """A class of a few fields, and one of none."""

    @dataclass(**options)
    class Point:
        """Fields of several kinds."""

        x: int
        parts: list[int] = dataclasses.field(default_factory=list)
        note: str = dataclasses.field(default="a", compare=False)
        secret: int = dataclasses.field(default=1, repr=False)
        named: dict[str, int] = dataclasses.field(default_factory=dict, hash=False)

    @dataclass(**options)
    class Nothing:
        """No field."""

    return Point, Nothing


def _said(make: Any) -> Any:
    try:
        return make()
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_what_the_standard_library_makes(options: dict[str, Any]) -> None:
    point, nothing = _make(records.dataclass, options)
    standard, standard_nothing = _make(dataclasses.dataclass, options)
    ours, theirs = (
        [kind(x=1), kind(x=1, note="b"), kind(x=1, parts=[2]), kind(x=2, secret=3)] for kind in (point, standard)
    )
    assert [repr(record) for record in ours] == [repr(record) for record in theirs]
    assert [record == other for record in ours for other in ours] == [
        record == other for record in theirs for other in theirs
    ]
    assert [dataclasses.asdict(record) for record in ours] == [dataclasses.asdict(record) for record in theirs]
    assert (nothing() == nothing()) is (standard_nothing() == standard_nothing())
    assert repr(nothing()) == repr(standard_nothing())
    assert ours[0] != theirs[0] and ours[0] != 1
    assert repr(dataclasses.replace(ours[3], x=5)) == repr(dataclasses.replace(theirs[3], x=5))
    assert _said(lambda: point(y=1)) == _said(lambda: standard(y=1))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("is_made", [False, True])
def test_its_signature_is_that_of_the_standard_librarys(options: dict[str, Any], is_made: bool) -> None:
    classes = [_make(kind, options) for kind in (records.dataclass, dataclasses.dataclass)]
    if is_made:
        for point, nothing in classes:
            point(x=1), nothing()
    ours, theirs = ([str(inspect.signature(kind)) for kind in pair] for pair in classes)
    assert ours == theirs


@records.dataclass(frozen=True)
class Key:
    """Two fields, as of many a key."""

    x: int
    name: str

    @cached_property
    def double(self) -> int:
        return 2 * self.x


def test_keys_are_found_by_value_and_travel() -> None:
    key = Key(3, "a")
    assert {key: 1}[Key(3, "a")] == 1 and len({Key(3, "a"), Key(3, "a"), Key(4, "a")}) == 2
    assert key.double == 6 and pickle.loads(pickle.dumps(key)) == key


def test_objects_that_may_change_are_no_keys() -> None:
    point, _ = _make(records.dataclass, {})
    with pytest.raises(TypeError, match="unhashable"):
        hash(point(x=1))


def test_by_identity_they_are_keys() -> None:
    point, _ = _make(records.dataclass, {"eq": False})
    first, second = point(x=1), point(x=1)
    assert first != second and len({first, second, first}) == 2


@pytest.mark.all
def test_the_type_checker_guards_what_is_frozen(tmp_path: Path) -> None:
    path = tmp_path / "changes.py"
    path.write_text(
        "from meshrt.records import dataclass\n\n\n@dataclass(frozen=True)\nclass Key:\n    x: int\n\n\n"
        "Key(1).x = 2\nKey('a')\n"
    )
    argv = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(path)]
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert 'Property "x" defined in "Key" is read-only' in said and "incompatible type" in said, said


def test_a_representation_of_ones_own_stays() -> None:
    @records.dataclass(frozen=True)
    class Named:
        name: str

        def __repr__(self) -> str:
            return self.name

    assert repr(Named("a")) == "a"
