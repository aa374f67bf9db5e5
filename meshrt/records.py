"""`dataclass` for classes that every rank makes at its start, in a sixth of the time of dataclasses.dataclass.

That one writes up to six methods as text, which each process compiles anew: 0.3 ms a class, of which a rank has 144.
Here `__init__` alone is made so, without annotations, and when the first object is made, which a third of the classes
never see; equality, hash and representation are functions that look the fields up. That nobody assigns to a field of a
frozen one is left to the type checker, which takes this for dataclasses.dataclass. There are no InitVars.
"""

from __future__ import annotations

import dataclasses
import sys
from operator import attrgetter
from typing import TYPE_CHECKING, Any


class Absent:
    """What an argument is that was not given, and is to be made."""

    def __repr__(self) -> str:
        return "<factory>"


ABSENT = Absent()


class Written:
    """Whoever asks for the signature of a class reads it off its `__init__`, which is written for that."""

    def __get__(self, record: Any, cls: Any) -> Any:
        write = getattr(cls.__init__, "write", None)
        if write is not None:
            write()
        raise AttributeError("__signature__")


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: Any = None, *, frozen: bool = False, eq: bool = True, **options: Any) -> Any:
        """A class decorator, bare or with options of dataclasses.dataclass other than `repr` and `order`."""

        def made(cls: Any) -> Any:
            cls = dataclasses.dataclass(repr=False, eq=False, init=False, **options)(cls)
            if "__init__" not in vars(cls):
                cls.__init__, cls.__signature__ = _written_when_called(cls), Written()
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


def write_all() -> None:
    """Write what is not written yet, of all modules that are there: for processes that are forked from this one."""
    for module in [module for name, module in sys.modules.items() if name.startswith("meshrt")]:
        for cls in [each for each in vars(module).values() if isinstance(each, type)]:
            write = getattr(vars(cls).get("__init__"), "write", None)
            if write is not None:
                write()


def _written_when_called(cls: Any) -> Any:
    def write() -> None:
        cls.__init__ = _init(cls)

    def __init__(self: Any, *given: Any, **by_name: Any) -> None:
        write()
        cls.__init__(self, *given, **by_name)

    __init__.write = write  # type: ignore[attr-defined]  # as of any function
    return __init__


def _init(cls: type) -> Any:
    """`__init__` of a class that has its fields."""
    given, by_name, text = ["self"], list[str](), list[str]()
    space: dict[str, Any] = {"ABSENT": ABSENT}
    for field in dataclasses.fields(cls):
        name, makes = field.name, field.default_factory is not dataclasses.MISSING
        space |= {f"make_{name}": field.default_factory} if makes else {f"default_{name}": field.default}
        if field.init:
            default = "=ABSENT" if makes else "" if field.default is dataclasses.MISSING else f"=default_{name}"
            (by_name if field.kw_only else given).append(name + default)
            text.append(
                f"self.{name} = make_{name}() if {name} is ABSENT else {name}" if makes else f"self.{name} = {name}"
            )
        elif makes:
            text.append(f"self.{name} = make_{name}()")
    if hasattr(cls, "__post_init__"):
        text.append("self.__post_init__()")
    arguments = ", ".join([*given, *(["*", *by_name] if by_name else [])])
    exec(f"def __init__({arguments}): {'; '.join(text) or 'pass'}", space)
    made: Any = space["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls) if field.init} | {
        "return": None
    }
    return made


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
