"""Expressions: to a value where all is known, else to the Python that computes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl import nodes as n
from meshrt.csl.arithmetic import COMPARES, OPERATORS, divide, fits, remainder, typed
from meshrt.csl.costs import COSTS
from meshrt.csl.errors import unknown
from meshrt.csl.scope import Scope
from meshrt.csl.types import (
    BOOL,
    FLOAT,
    INT,
    MODULE,
    NATIVE,
    STRING,
    STRUCT,
    TYPE,
    TYPES,
    VOID,
    Array,
    Callable,
    Enum,
    Pointer,
    Simple,
    dtype,
    is_dsd,
    is_float,
    is_int,
    is_number,
    is_pointer,
    is_word,
    nbytes,
)  # fmt: skip
from meshrt.csl.values import Cell, Element, FunctionRef, Library, Local, Memory, Module, Slot, Val

DIRECTIONS = {"RAMP": 0, "EAST": 1, "NORTH": 2, "WEST": 3, "SOUTH": 4}


def expression(node: n.Node, scope: Scope) -> Val:
    """What a node comes to. CslError."""
    found: Val = HANDLERS[type(node)](node, scope)
    return found


def known(node: n.Node, scope: Scope, what: str) -> Val:
    """The value of what has to be known before the run. CslError."""
    found = expression(node, scope if scope.writer is None else scope.known())
    if not found.known:
        raise scope.wrong(node.line, f"{what} has to be known before the run")
    return found


def type_of_node(node: n.Node, scope: Scope) -> Any:
    """The type that a node names. CslError."""
    found = known(node, scope, "a type")
    if found.type is not TYPE:
        raise scope.wrong(node.line, f"a type is missing: this is a {found.type}")
    return found.value


def code(one: Val, scope: Scope) -> str:
    """The Python of a value."""
    if one.code is not None:
        return one.code
    if one.type is BOOL or one.type is VOID:
        return repr(None if one.type is VOID else bool(one.value))
    if is_word(one.type):
        return repr(int(one.value))
    if isinstance(one.value, FunctionRef):
        return f"FunctionOf(c, {scope.image.constant(one.value)})"
    return str(scope.image.constant(one.value))


def truth(node: n.Node, scope: Scope) -> Val:
    found = expression(node, scope)
    if found.type != BOOL:
        raise scope.wrong(node.line, f"a bool is missing: this is a {found.type}")
    return found


def coerce(one: Val, kind: Any, scope: Scope, line: int) -> Val:
    """A value as a type that holds all that it may be. CslError."""
    if one.type == kind or kind is TYPES["anytype"]:
        return one
    if one.known and is_number(kind) and is_number(one.type) and not (is_float(one.type) and is_int(kind)):
        return Val(kind, typed(one.value, kind, scope.at(line)))
    if one.type is INT and isinstance(kind, Simple) and is_word(kind) and kind is not BOOL:
        return Val(kind, int(one.value))
    if isinstance(kind, Enum) and one.type is TYPES["member"]:
        return enum_member(kind, one.value, scope, line)
    if is_number(one.type) and is_number(kind) and fits(one.type, kind):
        return Val(kind, code=f"convert({one.code}, {kind.name})")
    if is_pointer(one.type) and is_pointer(kind) and fits(one.type, kind):
        return Val(kind, one.value, one.code)
    if isinstance(kind, Callable) and (isinstance(one.type, Callable) or one.type is NATIVE):
        return Val(one.type, one.value, one.code)
    if one.type in (INT, FLOAT) and not one.known and is_number(kind) and (one.type is INT or is_float(kind)):
        return Val(kind, code=f"{kind}({one.code})")
    if kind is STRUCT and isinstance(one.value, dict):
        return one
    if is_dsd(kind) and is_dsd(one.type):
        return one
    if isinstance(kind, Array) and isinstance(one.type, Array) and kind.sizes == one.type.sizes and one.known:
        if is_number(kind.element) and is_number(one.type.element):
            return Val(kind, np.asarray(one.value).astype(dtype(kind.element)))
        return Val(kind, one.value)
    raise scope.wrong(line, f"{one.type} where {kind} is asked for: @as or @bitcast say what is meant")


def enum_member(kind: Enum, name: str, scope: Scope, line: int) -> Val:
    members = dict(kind.members)
    if name not in members:
        raise unknown(scope.at(line), "member", name, members)
    return Val(kind, members[name])


def spend(scope: Scope, cycles: float) -> None:
    if scope.writer is not None:
        scope.writer.cost += cycles


# Names and where they lie


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
        spend(scope, COSTS.load)
        text = f"{view_of(one.type)}[{element_index(spot.address, size)}]"
        return Val(one.type, code=f"({text} != 0)" if one.type is BOOL else text, spot=spot)
    if isinstance(spot, Slot):
        if scope.writer is None:
            return Val(one.type, scope.image.objects[spot.index], spot=spot)
        spend(scope, COSTS.load)
        return Val(one.type, code=f"o[{spot.index}]", spot=spot)
    return one


def view_of(kind: Any) -> str:
    return f"m_{dtype(kind).name}"


def element_index(address: int | str, size: int) -> str:
    if isinstance(address, int):
        return str(address // size)
    if size == 1:
        return address
    shift = {2: 1, 4: 2, 8: 3}[size]
    return f"({address}) >> {shift}"


def _name(node: n.Name, scope: Scope) -> Val:
    return load(place(node, scope), scope)


def name_place(name: str, scope: Scope, line: int) -> Val:
    found = scope.find(name)
    if found is None:
        found = scope.language.lookup(scope.module, name)
    if found is None:
        if name in TYPES:
            return Val(TYPE, TYPES[name])
        if name in DIRECTIONS:
            return Val(TYPES["direction"], DIRECTIONS[name])
        raise unknown(scope.at(line), "name", name, [*all_names(scope), *TYPES, *DIRECTIONS])
    return found


def all_names(scope: Scope) -> list[str]:
    names = [*scope.module.tree.declarations]
    inner: Scope | None = scope
    while inner is not None:
        names += inner.names
        inner = inner.outer
    return names


def place(node: n.Node, scope: Scope) -> Val:
    """A value with where it lies, not yet read."""
    if isinstance(node, n.Name):
        return name_place(node.name, scope, node.line)
    if isinstance(node, n.Index):
        return _index_place(node, scope)
    if isinstance(node, n.Deref):
        pointer = expression(node.pointer, scope)
        if not is_pointer(pointer.type):
            raise scope.wrong(node.line, f".* of a {pointer.type}, which is no pointer")
        return Val(pointer.type.to, spot=Memory(int(pointer.value) if pointer.known else f"int({pointer.code})"))
    if isinstance(node, n.Field):
        return _field_place(node, scope)
    return expression(node, scope)


def _index_place(node: n.Index, scope: Scope) -> Val:
    array = place(node.array, scope)
    if isinstance(array.type, Pointer):
        array = load(array, scope)
        to = array.type.to
        kind = to if isinstance(to, Array) else Array((1 << 15,), to)
        base: int | str = int(array.value) if array.known else f"int({array.code})"
    elif isinstance(array.type, Array):
        kind = array.type
        if array.value is not None and (array.spot is None or isinstance(array.spot, Cell)):
            return _known_element(array, node, scope)
        if not isinstance(array.spot, Memory):
            raise scope.wrong(node.line, "this array has no place in memory")
        base = array.spot.address
    else:
        raise scope.wrong(node.line, f"[] of a {array.type}, which is neither array nor pointer")
    indices = [expression(one, scope) for one in node.indices]
    if len(indices) == 1 and len(kind.sizes) > 1:
        raise scope.wrong(node.line, f"{len(indices)} index for an array of {len(kind.sizes)} axes")
    if len(indices) != len(kind.sizes):
        raise scope.wrong(node.line, f"{len(indices)} indices for an array of {len(kind.sizes)} axes")
    size = nbytes(kind.element)
    fixed, parts = 0, []
    for at, (index, extent) in enumerate(zip(indices, kind.sizes, strict=True)):
        if not is_int(index.type):
            raise scope.wrong(node.line, f"an index is a {index.type}, not a whole number")
        stride = size
        for after in kind.sizes[at + 1 :]:
            stride *= after
        if index.known:
            if isinstance(array.type, Array) and not -1 < int(index.value) < extent:
                raise scope.wrong(node.line, f"index {index.value} of an axis of {extent}")
            fixed += int(index.value) * stride
        else:
            parts.append(f"int({index.code}) * {stride}")
            spend(scope, COSTS.arithmetic)
    if isinstance(base, int) and not parts:
        return Val(kind.element, spot=Memory(base + fixed))
    if isinstance(base, int):
        fixed, base = fixed + base, ""
    text = " + ".join([*([base] if base else []), *parts, *([str(fixed)] if fixed else [])])
    return Val(kind.element, spot=Memory(text))


def _known_element(array: Val, node: n.Index, scope: Scope) -> Val:
    indices = [expression(one, scope) for one in node.indices]
    if all(one.known for one in indices):
        index = tuple(int(one.value) for one in indices)
        for one, extent in zip(index, array.type.sizes, strict=True):
            if not -1 < one < extent:
                raise scope.wrong(node.line, f"index {one} of an axis of {extent}")
        found = array.value[index]
        if isinstance(found, Val):
            found = found.value
        elif not is_number(array.type.element) and isinstance(found, np.generic):
            found = int(found)
        return Val(array.type.element, found, spot=Element(array.value, index))
    table = scope.image.constant(array.value)
    spend(scope, COSTS.load)
    return Val(array.type.element, code=f"{table}[{', '.join(f'int({code(one, scope)})' for one in indices)}]")


def _index(node: n.Index, scope: Scope) -> Val:
    return load(_index_place(node, scope), scope)


def _deref(node: n.Deref, scope: Scope) -> Val:
    return load(place(node, scope), scope)


def _field_place(node: n.Field, scope: Scope) -> Val:
    owner = expression(node.owner, scope)
    if owner.type is MODULE:
        module = owner.value
        if isinstance(module, Library):
            if node.name not in module.members:
                raise unknown(scope.at(node.line), f"{module.name} member", node.name, module.members)
            return module.members[node.name]
        assert isinstance(module, Module)
        found: Val | None = scope.language.lookup(module, node.name)
        if found is None:
            raise unknown(scope.at(node.line), f"name in {module.tree.path}", node.name, module.tree.declarations)
        return found
    if owner.type is STRUCT:
        if node.name not in owner.value:
            raise unknown(scope.at(node.line), "field", node.name, owner.value)
        one: Val = owner.value[node.name]
        return one
    if owner.type is TYPE and isinstance(owner.value, Enum):
        return enum_member(owner.value, node.name, scope, node.line)
    raise scope.wrong(node.line, f".{node.name} of a {owner.type}, which has no fields")


def _field(node: n.Field, scope: Scope) -> Val:
    return load(_field_place(node, scope), scope)


# Operators


def _literal(node: n.Literal, scope: Scope) -> Val:
    return Val(TYPES[node.type], node.value)


def _unary(node: n.Unary, scope: Scope) -> Val:
    if node.op == "&":
        return _address(node, scope)
    one = expression(node.operand, scope)
    if node.op == "!":
        if one.type != BOOL:
            raise scope.wrong(node.line, f"! of a {one.type}, which is no bool")
        return Val(BOOL, not one.value) if one.known else Val(BOOL, code=f"(not {one.code})")
    if not is_number(one.type):
        raise scope.wrong(node.line, f"{node.op} of a {one.type}, which is no number")
    if one.known:
        with np.errstate(all="ignore"):
            return Val(one.type, -one.value if node.op == "-" else ~one.value)
    spend(scope, COSTS.arithmetic)
    return Val(one.type, code=f"({node.op}{one.code})")


def _address(node: n.Unary, scope: Scope) -> Val:
    one = place(node.operand, scope)
    if isinstance(one.type, Callable):
        return one
    if not isinstance(one.spot, Memory):
        raise scope.wrong(node.line, "& of what has no place in memory")
    kind = Pointer(one.type, False)
    if isinstance(one.spot.address, int):
        return Val(kind, one.spot.address)
    return Val(kind, code=f"({one.spot.address})")


def peers(a: Val, b: Val, scope: Scope, line: int, op: str) -> tuple[Val, Val]:
    """Two operands as one type."""
    if a.type == b.type:
        return a, b
    if is_number(a.type) and is_number(b.type):
        for one, other, flip in ((a, b, False), (b, a, True)):
            if one.type is INT or (one.type is FLOAT and is_float(other.type)):
                changed = coerce(one, other.type if other.type is not INT else FLOAT, scope, line)
                return (other, changed) if flip else (changed, other)
        if is_float(a.type) == is_float(b.type):
            if fits(a.type, b.type) or (a.known and not b.known):
                return coerce(a, b.type, scope, line), b
            if fits(b.type, a.type) or b.known:
                return a, coerce(b, a.type, scope, line)
    if is_word(a.type) and (is_word(b.type) or b.type is INT):
        return a, b
    if isinstance(a.type, Enum) and b.type is TYPES["member"]:
        return a, coerce(b, a.type, scope, line)
    raise scope.wrong(line, f"{op} of {a.type} and {b.type}: @as says which is meant")


def _binary(node: n.Binary, scope: Scope) -> Val:
    if node.op in ("and", "or"):
        return _logical(node, scope)
    a = expression(node.left, scope)
    b = expression(node.right, scope)
    return binary(node.op, a, b, scope, node.line)


def binary(op: str, a: Val, b: Val, scope: Scope, line: int) -> Val:
    if op in ("<<", ">>"):
        if not (is_int(a.type) and is_int(b.type)):
            raise scope.wrong(line, f"{op} of {a.type} and {b.type}: whole numbers are shifted")
        if a.known and b.known:
            b = Val(a.type, typed(b.value, a.type, scope.at(line)))
        elif a.type is INT:
            raise scope.wrong(line, f"{op} of a number without a type by one that is not known: @as says which type")
        else:
            b = (
                Val(a.type, typed(b.value, a.type, scope.at(line)))
                if b.known
                else Val(a.type, code=f"{a.type}({b.code})")
            )
    elif is_pointer(a.type) and is_int(b.type) and op in "+-":
        raise scope.wrong(line, "pointers have no + and -: index them")
    elif a.type is b.type and a.type in (TYPE, STRING) and op in ("==", "!="):
        return Val(BOOL, OPERATORS[op](a.value, b.value))
    else:
        a, b = peers(a, b, scope, line, op)
    kind = BOOL if op in COMPARES else a.type
    if op not in COMPARES and not is_number(a.type) and not (a.type == BOOL and op in "&|^"):
        raise scope.wrong(line, f"{op} of {a.type}, which is no number")
    if op in ("&", "|", "^", "<<", ">>") and is_float(a.type):
        raise scope.wrong(line, f"{op} of {a.type}: whole numbers have bits")
    if a.known and b.known:
        with np.errstate(all="ignore"):
            return Val(kind, _compute(op, a, b, scope, line))
    spend(scope, COSTS.arithmetic)
    left, right = code(a, scope), code(b, scope)
    if op in "/%" and (op == "%" or is_int(a.type)):
        return Val(kind, code=f"{'divide' if op == '/' else 'remainder'}({left}, {right})")
    return Val(kind, code=f"({left} {op} {right})")


def _compute(op: str, a: Val, b: Val, scope: Scope, line: int) -> Any:
    x, y = a.value, b.value
    if op in "/%":
        if is_int(a.type) and y == 0:
            raise scope.wrong(line, f"{x} {op} 0")
        if op == "%":
            return remainder(x, y)
        return divide(x, y) if is_int(a.type) else x / y
    found = OPERATORS[op](x, y)
    return bool(found) if op in COMPARES or a.type == BOOL else found


def _logical(node: n.Binary, scope: Scope) -> Val:
    a = truth(node.left, scope)
    if a.known:
        if bool(a.value) == (node.op == "or"):
            return a
        return truth(node.right, scope)
    b = truth(node.right, scope)
    spend(scope, COSTS.branch)
    return Val(BOOL, code=f"({a.code} {node.op} {code(b, scope)})")


def _choice(node: n.Choice, scope: Scope) -> Val:
    condition = truth(node.condition, scope)
    if condition.known:
        if condition.value:
            return expression(node.then, scope)
        return Val(VOID) if node.otherwise is None else expression(node.otherwise, scope)
    if node.otherwise is None:
        raise scope.wrong(node.line, "this if has no else, and so no value")
    a, b = expression(node.then, scope), expression(node.otherwise, scope)
    a, b = peers(a, b, scope, node.line, "if") if a.type != b.type else (a, b)
    spend(scope, COSTS.branch)
    return Val(a.type, code=f"({code(a, scope)} if {condition.code} else {code(b, scope)})")


def _switch(node: n.Switch, scope: Scope) -> Val:
    value = expression(node.value, scope)
    if not value.known:
        raise scope.wrong(node.line, "switch as a value has to be known before the run")
    for labels, then in node.cases:
        if not labels or any(binary("==", value, expression(one, scope), scope, node.line).value for one in labels):
            return expression(then, scope)
    raise scope.wrong(node.line, "no case of this switch fits")


# Aggregates and types


def _struct(node: n.Struct, scope: Scope) -> Val:
    return Val(STRUCT, {name: expression(one, scope) for name, one in node.fields})


def _items(node: n.Items, scope: Scope) -> Val:
    kind = type_of_node(node.type, scope)
    if kind.count != len(node.items):
        raise scope.wrong(node.line, f"{len(node.items)} values for {kind}")
    found = [coerce(expression(one, scope), kind.element, scope, one.line) for one in node.items]
    if not all(one.known for one in found):
        return Val(kind, code="[" + ", ".join(code(one, scope) for one in found) + "]")
    if nbytes(kind.element):
        return Val(kind, np.array([one.value for one in found], dtype(kind.element)).reshape(kind.sizes))
    array = np.empty(len(found), object)
    for at, one in enumerate(found):
        array[at] = one.value
    return Val(kind, array.reshape(kind.sizes))


def _array_type(node: n.ArrayType, scope: Scope) -> Val:
    sizes = tuple(int(known(one, scope, "an array's size").value) for one in node.sizes)
    if min(sizes) < 0:
        raise scope.wrong(node.line, f"an array of {min(sizes)}")
    return Val(TYPE, Array(sizes, type_of_node(node.element, scope)))


def _pointer_type(node: n.PointerType, scope: Scope) -> Val:
    return Val(TYPE, Pointer(type_of_node(node.element, scope), node.many))


def _function_type(node: n.FunctionType, scope: Scope) -> Val:
    parameters = tuple(type_of_node(one, scope) for one in node.parameters)
    return Val(TYPE, Callable(parameters, type_of_node(node.result, scope)))


def _enum_type(node: n.EnumType, scope: Scope) -> Val:
    members: list[tuple[str, int]] = []
    for name, value in node.members:
        after = members[-1][1] + 1 if members else 0
        members.append((name, after if value is None else int(known(value, scope, "a member").value)))
    return Val(TYPE, Enum(tuple(members)))


def _comptime(node: n.Comptime, scope: Scope) -> Val:
    return known(node.body, scope, "what comptime says")


# Calls


def _call(node: n.Call, scope: Scope) -> Val:
    callee = place(node.callee, scope)
    arguments = [expression(one, scope) for one in node.arguments]
    if callee.type is NATIVE:
        found: Val = callee.value.call(scope, arguments, node.line)
        return found
    callee = load(callee, scope)
    if not isinstance(callee.type, Callable):
        raise scope.wrong(node.line, f"a call of a {callee.type}, which is no function")
    called: Val = scope.language.call(callee, arguments, scope, node.line)
    return called


def _builtin(node: n.Builtin, scope: Scope) -> Val:
    builtins = scope.language.builtins
    if node.name not in builtins:
        raise unknown(scope.at(node.line), "builtin", node.name, builtins)
    found: Val = builtins[node.name](node, scope)
    return found


def _access(node: n.Access, scope: Scope) -> Val:
    return Val(TYPES["access"], (node, scope))


HANDLERS: dict[type, Any] = {
    n.Literal: _literal, n.Name: _name, n.Struct: _struct, n.Items: _items, n.Unary: _unary, n.Binary: _binary,
    n.Call: _call, n.Builtin: _builtin, n.Field: _field, n.Deref: _deref, n.Index: _index, n.Choice: _choice,
    n.ArrayType: _array_type, n.PointerType: _pointer_type, n.FunctionType: _function_type, n.EnumType: _enum_type,
    n.Comptime: _comptime, n.Switch: _switch, n.Access: _access,
}  # fmt: skip

__all__ = ["Local", "coerce", "expression", "known", "load", "place"]
