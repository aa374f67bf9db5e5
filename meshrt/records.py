"""`dataclass` for classes that every rank makes at its start, in a third of the time of dataclasses.dataclass.

That one writes up to six methods as text, which each process compiles anew: 0.3 ms a class, of which a rank has a
hundred. Here `__init__` alone is made so; equality, hash and representation are functions that look the fields up.
That nobody assigns to a field of a frozen one is left to the type checker, which takes this for dataclasses.dataclass.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: Any = None, *, frozen: bool = False, eq: bool = True, **options: Any) -> Any:
        """A class decorator, bare or with options of dataclasses.dataclass other than `repr` and `order`."""

        def made(cls: Any) -> Any:
            cls = dataclasses.dataclass(repr=False, eq=False, **options)(cls)
            if "__repr__" not in vars(cls):
                cls.__repr__ = _shown
            if eq:
                compared = [field for field in dataclasses.fields(cls) if field.compare]
                hashed = [
                    field for field in dataclasses.fields(cls) if (field.compare if field.hash is None else field.hash)
                ]
                cls.__eq__, cls.__hash__ = _by_value(_getter(compared), _getter(hashed), frozen)
            return cls

        return made if cls is None else made(cls)


def _shown(record: Any) -> str:
    values = (f"{field.name}={getattr(record, field.name)!r}" for field in dataclasses.fields(record) if field.repr)
    return f"{type(record).__qualname__}({', '.join(values)})"


def _nothing(record: Any) -> tuple[()]:
    return ()


def _getter(fields: Any) -> Any:
    return attrgetter(*(field.name for field in fields)) if fields else _nothing


def _by_value(values: Any, hashed: Any, frozen: bool) -> tuple[Any, Any]:
    """(`__eq__`, `__hash__`) of a class whose objects are equal where `values` of them are; no hash if not frozen."""

    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(hashed(self))

    return __eq__, __hash__ if frozen else None
