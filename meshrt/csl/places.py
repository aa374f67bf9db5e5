"""Where values lie: what names, indices, pointers and fields lead to, and how that is read and written."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl.conversions import code, enum_member
from meshrt.csl.costs import COSTS
from meshrt.csl.errors import unknown
from meshrt.csl.scope import Scope
from meshrt.csl.types import (
    BOOL,
    MODULE,
    STRUCT,
    TYPE,
    TYPES,
    Array,
    Callable,
    Enum,
    Pointer,
    dtype,
    is_int,
    is_number,
    is_pointer,
    nbytes,
)  # fmt: skip
from meshrt.csl.values import Cell, Element, Library, Local, Memory, Module, Slot, Val

DIRECTIONS = {"RAMP": 0, "EAST": 1, "NORTH": 2, "WEST": 3, "SOUTH": 4}


def load(one: Val, scope: Scope) -> Val:
    """The value of what lies somewhere."""
    spot = one.spot
    if spot is None or not (one.code is None and one.value is None):
        return one
    if isinstance(spot, Memory):
        if isinstance(one.type, Array):
            return one
        if nbytes(one.type) == 0:
            raise AssertionError
        size = dtype(one.type).itemsize
        if scope.writer is None:
            if not isinstance(spot.address, int) or scope.image is None:
                return one
            view = scope.image.memory.view(dtype(one.type))
            raw = view[spot.address // size]
            return Val(one.type, raw if is_number(one.type) else bool(raw) if one.type is BOOL else int(raw), spot=spot)
        scope.spend(COSTS.load)
        text = f"{view_of(one.type)}[{element_index(spot.address, size)}]"
        return Val(one.type, code=f"({text} != 0)" if one.type is BOOL else text, spot=spot)
    if isinstance(spot, Slot):
        if scope.writer is None:
            return Val(one.type, scope.image.objects[spot.index], spot=spot)
        scope.spend(COSTS.load)
        return Val(one.type, code=f"o[{spot.index}]", spot=spot)
    return one


def named(name: str, scope: Scope, line: int) -> Val:
    found = scope.find(name)
    if found is None:
        found = scope.language.lookup(scope.module, name)
    if found is None:
        if name in TYPES:
            return Val(TYPE, TYPES[name])
        if name in DIRECTIONS:
            return Val(TYPES["direction"], DIRECTIONS[name])
        raise unknown(scope.at(line), "name", name, [*_all_names(scope), *TYPES, *DIRECTIONS])
    return found


def _all_names(scope: Scope) -> list[str]:
    names = [*scope.module.tree.declarations]
    inner: Scope | None = scope
    while inner is not None:
        names += inner.names
        inner = inner.outer
    return names


def view_of(kind: Any) -> str:
    return f"m_{dtype(kind).name}"


def element_index(address: int | str, size: int) -> str:
    if isinstance(address, int):
        return str(address // size)
    shift = {1: 0, 2: 1, 4: 2, 8: 3}[size]
    return f"within(({address}) >> {shift})"


def pointed(pointer: Val, scope: Scope, line: int) -> Val:
    """What lies where a pointer points to. CslError."""
    if not is_pointer(pointer.type):
        raise scope.wrong(line, f".* of a {pointer.type}, which is no pointer")
    return Val(pointer.type.to, spot=Memory(int(pointer.value) if pointer.known else f"int({pointer.code})"))


def address(one: Val, scope: Scope, line: int) -> Val:
    """The pointer to a value. CslError."""
    if isinstance(one.type, Callable):
        return one
    if not isinstance(one.spot, Memory):
        raise scope.wrong(line, "& of what has no place in memory")
    kind = Pointer(one.type, False)
    if isinstance(one.spot.address, int):
        return Val(kind, one.spot.address)
    return Val(kind, code=f"({one.spot.address})")


def element(array: Val, indices: list[Val], scope: Scope, line: int) -> Val:
    """One of an array, or of what a pointer that was read leads to. CslError."""
    if isinstance(array.type, Pointer):
        to = array.type.to
        kind = to if isinstance(to, Array) else Array((1 << 15,), to)
        base: int | str = int(array.value) if array.known else f"int({array.code})"
    elif isinstance(array.type, Array):
        kind = array.type
        if array.value is not None and (array.spot is None or isinstance(array.spot, Cell)):
            return _known_element(array, indices, scope, line)
        if not isinstance(array.spot, Memory):
            raise scope.wrong(line, "this array has no place in memory")
        base = array.spot.address
    else:
        raise scope.wrong(line, f"[] of a {array.type}, which is neither array nor pointer")
    if len(indices) == 1 and len(kind.sizes) > 1:
        raise scope.wrong(line, f"{len(indices)} index for an array of {len(kind.sizes)} axes")
    if len(indices) != len(kind.sizes):
        raise scope.wrong(line, f"{len(indices)} indices for an array of {len(kind.sizes)} axes")
    size = nbytes(kind.element)
    fixed, parts = 0, []
    for at, (index, extent) in enumerate(zip(indices, kind.sizes, strict=True)):
        if not is_int(index.type):
            raise scope.wrong(line, f"an index is a {index.type}, not a whole number")
        stride = size
        for after in kind.sizes[at + 1 :]:
            stride *= after
        if index.known:
            if isinstance(array.type, Array) and not -1 < int(index.value) < extent:
                raise scope.wrong(line, f"index {index.value} of an axis of {extent}")
            fixed += int(index.value) * stride
        else:
            parts.append(f"int({index.code}) * {stride}")
            scope.spend(COSTS.arithmetic)
    if isinstance(base, int) and not parts:
        return Val(kind.element, spot=Memory(base + fixed))
    if isinstance(base, int):
        fixed, base = fixed + base, ""
    text = " + ".join([*([base] if base else []), *parts, *([str(fixed)] if fixed else [])])
    return Val(kind.element, spot=Memory(text))


def _known_element(array: Val, indices: list[Val], scope: Scope, line: int) -> Val:
    if all(one.known for one in indices):
        index = tuple(int(one.value) for one in indices)
        for one, extent in zip(index, array.type.sizes, strict=True):
            if not -1 < one < extent:
                raise scope.wrong(line, f"index {one} of an axis of {extent}")
        found = array.value[index]
        if isinstance(found, Val):
            found = found.value
        elif not is_number(array.type.element) and isinstance(found, np.generic):
            found = int(found)
        return Val(array.type.element, found, spot=Element(array.value, index))
    table = scope.image.constant(array.value)
    scope.spend(COSTS.load)
    return Val(array.type.element, code=f"{table}[{', '.join(f'int({code(one, scope)})' for one in indices)}]")


def member(owner: Val, name: str, scope: Scope, line: int) -> Val:
    """A field of a struct, a name of a module, one of an enum. CslError."""
    if owner.type is MODULE:
        module = owner.value
        if isinstance(module, Library):
            if name not in module.members:
                raise unknown(scope.at(line), f"{module.name} member", name, module.members)
            return module.members[name]
        assert isinstance(module, Module)
        found: Val | None = scope.language.lookup(module, name)
        if found is None:
            raise unknown(scope.at(line), f"name in {module.tree.path}", name, module.tree.declarations)
        return found
    if owner.type is STRUCT:
        if name not in owner.value:
            raise unknown(scope.at(line), "field", name, owner.value)
        one: Val = owner.value[name]
        return one
    if owner.type is TYPE and isinstance(owner.value, Enum):
        return enum_member(owner.value, name, scope, line)
    raise scope.wrong(line, f".{name} of a {owner.type}, which has no fields")


def store(target: Val, value: Val, scope: Scope, line: int) -> None:
    """Put a value where another lies."""
    spot, writer = target.spot, scope.writer
    if isinstance(spot, Cell):
        new = value.value.copy() if isinstance(value.value, np.ndarray) else value.value
        spot.names[spot.name] = Val(target.type, new, spot=spot)
    elif isinstance(spot, Element):
        spot.array[spot.index] = value.value
    elif writer is None:
        if isinstance(spot, Memory) and isinstance(spot.address, int) and not isinstance(target.type, Array):
            scope.image.memory.view(dtype(target.type))[spot.address // dtype(target.type).itemsize] = value.value
        elif isinstance(spot, Slot):
            scope.image.objects[spot.index] = value.value
        else:
            raise scope.wrong(line, "this cannot be assigned to before the run")
    elif isinstance(spot, Memory):
        scope.spend(COSTS.store)
        if isinstance(target.type, Array):
            of = target.type.element
            if value.spot is not None and value.code is None and value.value is None:
                count, size = target.type.count, dtype(of).itemsize
                a, b = element_index(spot.address, size), element_index(value.spot.address, size)
                writer.charge()
                writer.line(f"{view_of(of)}[{a}:({a}) + {count}] = {view_of(of)}[{b}:({b}) + {count}]")
                return
            text = (
                code(value, scope) if value.code is not None else scope.image.constant(np.asarray(value.value).ravel())
            )
            begin = element_index(spot.address, dtype(of).itemsize)
            writer.charge()
            writer.line(f"{view_of(of)}[{begin}:({begin}) + {target.type.count}] = {text}")
            return
        text = code(value, scope)
        writer.charge()
        writer.line(f"{view_of(target.type)}[{element_index(spot.address, dtype(target.type).itemsize)}] = {text}")
    elif isinstance(spot, Slot):
        scope.spend(COSTS.store)
        text = code(value, scope)
        writer.charge()
        writer.line(f"o[{spot.index}] = {text}")
    elif isinstance(spot, Local):
        text = code(value, scope)
        writer.charge()
        writer.line(f"{spot.name} = {text}")
    else:
        raise scope.wrong(line, "this is const: it cannot be assigned to")
