"""Lvalues: what names, indices, pointers and fields lead to in memory, and how that is read and written."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl.costs import COSTS
from meshrt.csl.errors import unknown
from meshrt.csl.language.arithmetic import convert
from meshrt.csl.language.conversions import code, enum_member
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.types import (
    BOOL,
    MODULE,
    NUMBERS,
    STRUCT,
    TYPE,
    TYPES,
    Callable,
    CslArray,
    Enum,
    Pointer,
    dtype,
    in_a_word,
    is_int,
    is_number,
    is_pointer,
    nbytes,
)  # fmt: skip
from meshrt.csl.language.values import Element, Library, Local, MemoryAddress, Module, Slot, StaticVariable, Val

DIRECTIONS = {"RAMP": 0, "EAST": 1, "NORTH": 2, "WEST": 3, "SOUTH": 4}


def load(value: Val, scope: Scope) -> Val:
    """The value of what lies somewhere."""
    spot = value.spot
    if spot is None or not (value.code is None and value.value is None):
        return value
    if isinstance(spot, MemoryAddress):
        if isinstance(value.type, CslArray):
            return value
        if nbytes(value.type) == 0:
            raise AssertionError
        size = dtype(value.type).itemsize
        if scope.writer is None:
            if not isinstance(spot.address, int) or scope.image is None:
                return value
            view = scope.image.memory.view(dtype(value.type))
            raw = view[spot.address // size]
            if in_a_word(value.type):
                raw = convert(raw, NUMBERS[value.type.name])
            return Val(
                value.type, raw if is_number(value.type) else bool(raw) if value.type is BOOL else int(raw), spot=spot
            )
        scope.spend(COSTS.load)
        text = f"{view_of(value.type)}[{element_index(spot.address, size)}]"
        if in_a_word(value.type):
            text = f"convert({text}, {value.type})"
        return Val(value.type, code=f"({text} != 0)" if value.type is BOOL else text, spot=spot)
    if isinstance(spot, Slot):
        if scope.writer is None:
            return Val(value.type, scope.image.objects[spot.index], spot=spot)
        scope.spend(COSTS.load)
        return Val(value.type, code=f"o[{spot.index}]", spot=spot)
    return value


def named(name: str, scope: Scope, line: int) -> Val:
    value = scope.find(name)
    if value is None:
        value = scope.language.lookup(scope.module, name)
    if value is None:
        if name in TYPES:
            return Val(TYPE, TYPES[name])
        if name in DIRECTIONS:
            return Val(TYPES["direction"], DIRECTIONS[name])
        raise unknown(scope.at(line), "name", name, [*_all_names(scope), *TYPES, *DIRECTIONS])
    return value


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
    if isinstance(address, int) and address % size == 0:
        return str(address // size)
    return f"place_of({address}, {size})"


def pointed(pointer: Val, scope: Scope, line: int) -> Val:
    """What lies where a pointer points to. CslError."""
    if not is_pointer(pointer.type):
        raise scope.wrong(line, f".* of a {pointer.type}, which is no pointer")
    return Val(pointer.type.to, spot=MemoryAddress(int(pointer.value) if pointer.known else f"int({pointer.code})"))


def address(value: Val, scope: Scope, line: int) -> Val:
    """The pointer to a value. CslError."""
    if isinstance(value.type, Callable):
        return value
    if not isinstance(value.spot, MemoryAddress):
        raise scope.wrong(line, "& of what has no place in memory")
    kind = Pointer(value.type, False)
    if isinstance(value.spot.address, int):
        return Val(kind, value.spot.address)
    return Val(kind, code=f"({value.spot.address})")


def element(array: Val, indices: list[Val], scope: Scope, line: int) -> Val:
    """One of an array, or of what a pointer that was read leads to. CslError."""
    if isinstance(array.type, Pointer):
        to = array.type.to
        kind = to if isinstance(to, CslArray) else CslArray((1 << 15,), to)
        base: int | str = int(array.value) if array.known else f"int({array.code})"
    elif isinstance(array.type, CslArray):
        kind = array.type
        if array.value is not None and (array.spot is None or isinstance(array.spot, StaticVariable)):
            return _known_element(array, indices, scope, line)
        if not isinstance(array.spot, MemoryAddress):
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
            if isinstance(array.type, CslArray) and not -1 < int(index.value) < extent:
                raise scope.wrong(line, f"index {index.value} of an axis of {extent}")
            fixed += int(index.value) * stride
        else:
            parts.append(f"int({index.code}) * {stride}")
            scope.spend(COSTS.arithmetic)
    if isinstance(base, int) and not parts:
        return Val(kind.element, spot=MemoryAddress(base + fixed))
    if isinstance(base, int):
        fixed, base = fixed + base, ""
    text = " + ".join([*([base] if base else []), *parts, *([str(fixed)] if fixed else [])])
    return Val(kind.element, spot=MemoryAddress(text))


def _known_element(array: Val, indices: list[Val], scope: Scope, line: int) -> Val:
    if all(value.known for value in indices):
        index = tuple(int(value.value) for value in indices)
        for number, extent in zip(index, array.type.sizes, strict=True):
            if not -1 < number < extent:
                raise scope.wrong(line, f"index {number} of an axis of {extent}")
        item = array.value[index]
        if isinstance(item, Val):
            item = item.value
        elif in_a_word(array.type.element):
            item = convert(item, NUMBERS[array.type.element.name])
        elif not is_number(array.type.element) and isinstance(item, np.generic):
            item = int(item)
        return Val(array.type.element, item, spot=Element(array.value, index))
    table = scope.image.constant(array.value)
    scope.spend(COSTS.load)
    text = f"{table}[{', '.join(f'int({code(value, scope)})' for value in indices)}]"
    if in_a_word(array.type.element):
        text = f"convert({text}, {array.type.element})"
    return Val(array.type.element, code=text)


def member(owner: Val, name: str, scope: Scope, line: int) -> Val:
    """A field of a struct, a name of a module, one of an enum. CslError."""
    if owner.type is MODULE:
        module = owner.value
        if isinstance(module, Library):
            if name not in module.members:
                raise unknown(scope.at(line), f"{module.name} member", name, module.members)
            return module.members[name]
        assert isinstance(module, Module)
        value: Val | None = scope.language.lookup(module, name)
        if value is None:
            raise unknown(scope.at(line), f"name in {module.tree.path}", name, module.tree.declarations)
        return value
    if owner.type is STRUCT:
        if owner.value is None:
            raise scope.wrong(line, f".{name} of a struct that is a var: in the run only a const has fields")
        if name not in owner.value:
            raise unknown(scope.at(line), "field", name, owner.value)
        field: Val = owner.value[name]
        return field
    if owner.type is TYPE and isinstance(owner.value, Enum):
        return enum_member(owner.value, name, scope, line)
    raise scope.wrong(line, f".{name} of a {owner.type}, which has no fields")


def store(target: Val, value: Val, scope: Scope, line: int) -> None:
    """Put a value where another lies."""
    spot, writer = target.spot, scope.writer
    if isinstance(spot, StaticVariable):
        new = value.value.copy() if isinstance(value.value, np.ndarray) else value.value
        spot.names[spot.name] = Val(target.type, new, spot=spot)
    elif isinstance(spot, Element):
        spot.array[spot.index] = value.value
    elif writer is None:
        if isinstance(spot, MemoryAddress) and isinstance(spot.address, int) and not isinstance(target.type, CslArray):
            scope.image.memory.view(dtype(target.type))[spot.address // dtype(target.type).itemsize] = value.value
        elif isinstance(spot, Slot):
            scope.image.objects[spot.index] = value.value
        else:
            raise scope.wrong(line, "this cannot be assigned to before the run")
    elif isinstance(spot, MemoryAddress):
        scope.spend(COSTS.store)
        if isinstance(target.type, CslArray):
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
