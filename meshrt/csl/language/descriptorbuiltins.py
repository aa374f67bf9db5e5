"""Builtins that make and change descriptors: of vectors in memory and on the fabric, of their registers."""

from __future__ import annotations

from typing import Any

from meshrt.csl.costs import COSTS
from meshrt.csl.errors import unknown
from meshrt.csl.language.conversions import code
from meshrt.csl.language.expressions import expression, known, lvalue, type_of_node
from meshrt.csl.language.lvalues import address, load
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.tilebuiltins import task_number
from meshrt.csl.language.types import (
    DSRS,
    STRUCT,
    TYPES,
    VOID,
    CslArray,
    Pointer,
    dtype,
    is_dsd,
    is_int,
    is_pointer,
    nbytes,
)
from meshrt.csl.language.values import MemoryAddress, Val
from meshrt.csl.machine.vectors import Dsr, Fab, Mem, increment, set_base, set_length, set_stride
from meshrt.csl.syntax import nodes as n

INTEGER = TYPES["comptime_int"]


def number(value: Val) -> str:
    """The Python of a whole number."""
    return str(int(value.value)) if value.known else f"int({value.code})"


def _made(kind: Any, make: Any, name: str, parts: dict[str, Any], scope: Scope) -> Val:
    """A descriptor of parts that are known, or the Python that makes it. A part: a Val, a tuple of them, or plain."""
    flat = [value for part in parts.values() for value in (part if isinstance(part, tuple) else (part,))]
    if all(value.known for value in flat if isinstance(value, Val)):
        plain = {
            key: tuple(int(value.value) for value in part) if isinstance(part, tuple)
            else int(part.value) if isinstance(part, Val) else part
            for key, part in parts.items()
        }  # fmt: skip
        return Val(kind, make(**plain))
    scope.spend(2 * COSTS.arithmetic)
    text = ", ".join(
        f"{key}=({''.join(number(value) + ', ' for value in part)})" if isinstance(part, tuple)
        else f"{key}={number(part)}" if isinstance(part, Val) else f"{key}={part!r}"
        for key, part in parts.items()
    )  # fmt: skip
    return Val(kind, code=f"{name}({text})")


def _get_dsd(node: n.Builtin, scope: Scope) -> Val:
    kind = type_of_node(node.arguments[0], scope)
    given = expression(node.arguments[1], scope)
    if not is_dsd(kind) or given.type is not STRUCT:
        raise scope.wrong(node.line, f"@get_dsd of {kind}: a kind of descriptor and a struct are asked for")
    fields = dict(given.value)
    if kind.name in ("fabin_dsd", "fabout_dsd"):
        return _fabric(kind, fields, scope, node.line)
    only(
        fields,
        {"tensor_access", "base_address", "extent", "stride", "offset", "wavelet_index_offset"},
        scope,
        node.line,
    )
    offset = "wavelet_index_offset" in fields and bool(fields["wavelet_index_offset"].value)
    if "tensor_access" in fields and fields["tensor_access"].type is STRUCT:
        inner = fields.pop("tensor_access").value
        only(inner, {"base_address", "extent", "stride", "offset"}, scope, node.line)
        for name in inner:
            if name in fields:
                raise scope.wrong(node.line, f".{name} is given twice, by itself and by .tensor_access")
        fields |= inner
    if "tensor_access" in fields:
        base, extents, strides, element = _tensor(*fields["tensor_access"].value)
    else:
        if "base_address" not in fields or "extent" not in fields:
            raise scope.wrong(node.line, "a vector in memory has .tensor_access, or .base_address and .extent")
        pointer = fields["base_address"]
        if not is_pointer(pointer.type):
            raise scope.wrong(node.line, f".base_address is a {pointer.type}, not a pointer")
        to = pointer.type.to
        element = to.element if isinstance(to, CslArray) else to
        base = pointer
        extents, strides = _steps(fields, scope, node.line)
        if "offset" in fields:  # in elements
            offset_by, at = fields["offset"], TYPES["comptime_int"]
            if base.known and offset_by.known:
                base = Val(at, int(base.value) + int(offset_by.value) * nbytes(element))
            else:
                base = Val(at, code=f"({number(base)} + {number(offset_by)} * {nbytes(element)})")
    for extent in extents:
        if extent.known and int(extent.value) < 0:
            raise scope.wrong(node.line, f"a vector of {extent.value} elements along an axis: 0 or more are")
    parts = {
        "base": base, "nbytes": nbytes(element), "extents": tuple(extents), "strides": tuple(strides),
        "dtype": dtype(element).str[1:], "index_offset": offset,
    }  # fmt: skip
    return _made(kind, Mem, "Mem", parts, scope)


def _steps(fields: dict[str, Val], scope: Scope, line: int) -> tuple[tuple[Val, ...], tuple[Val, ...]]:
    """.extent and .stride, each one number, or of several axes: the innermost first, each stride from where an axis
    has come to its end (SDK documentation, data structure descriptors)."""
    extents, strides = (
        tuple(fields[name].value.values()) if fields[name].type is STRUCT else (fields[name],)
        for name in ("extent", "stride" if "stride" in fields else "extent")
    )
    if "stride" not in fields:
        strides = (Val(TYPES["comptime_int"], 1),) * len(extents)
    if len(extents) != len(strides):
        raise scope.wrong(line, f".extent has {len(extents)} axes and .stride {len(strides)}")
    if len(extents) == 1:
        return extents, strides
    if not all(value.known for value in (*extents, *strides)):
        raise scope.wrong(line, ".extent and .stride of several axes have to be known before the run")
    plain: list[int] = []
    for stride in strides:
        back = sum(step * (int(axis.value) - 1) for step, axis in zip(plain, extents, strict=False))
        plain.append(int(stride.value) + back)
    return extents[::-1], tuple(Val(TYPES["comptime_int"], step) for step in reversed(plain))


def only(fields: dict[str, Val], names: set[str], scope: Scope, line: int) -> None:
    """CslError where a struct has a field of another name."""
    for name in fields:
        if name not in names:
            raise unknown(scope.at(line), "field", name, names)


def _fabric(kind: Any, fields: dict[str, Val], scope: Scope, line: int) -> Val:
    names = {
        "fabric_color", "extent", "input_queue", "output_queue", "control", "simd_mode", "advance_switch",
        "wavelet_index_offset", "priority", "single_step", "on_control", "queue",
    }  # fmt: skip
    only(fields, names, scope, line)
    inward = kind.name == "fabin_dsd"
    queue = fields.get("input_queue" if inward else "output_queue", fields.get("queue"))
    color = fields.get("fabric_color")
    if color is not None and color.type is VOID:  # a colour that was left out: the vector must not be used
        color = None
    if "fabric_color" not in fields and queue is None:
        raise scope.wrong(line, "a vector of the fabric has .fabric_color or a queue that has a colour")
    simd = 1
    if "simd_mode" in fields:
        simd = 4 if "simd_64" in fields["simd_mode"].value else 2 if "simd_32" in fields["simd_mode"].value else 1

    def flag(name: str) -> bool:
        return name in fields and bool(fields[name].value)

    on_control = None
    if "on_control" in fields:
        on_control = _on_control(fields["on_control"], scope, line)
    parts: dict[str, Any] = {
        "inward": inward, "color": color, "queue": queue, "extent": fields["extent"], "control": flag("control"),
        "simd": simd, "advance_switch": flag("advance_switch"), "index_offset": flag("wavelet_index_offset"),
        "on_control": on_control,
    }  # fmt: skip
    return _made(kind, Fab, "Fab", parts, scope)


def _on_control(struct: Val, scope: Scope, line: int) -> Any:
    for name in ("terminate", "transition", "wait"):
        if name in struct.value:
            value = struct.value[name]
            return (name, None if value.value is True else int(task_number(value, scope, line).value))
    raise scope.wrong(line, ".on_control says none of terminate, transition, wait")


def _tensor(node: n.Access, scope: Scope) -> Any:
    """Base address, extents and strides of |i|{n} -> A[f(i)], f affine."""
    extents = [expression(extent, scope) for extent in node.extents]
    element = node.element
    if not isinstance(element, n.Index):
        raise scope.wrong(node.line, "tensor_access leads to an element of an array")
    kind, base = _base(node, element, scope)
    if len(element.indices) != len(kind.sizes):
        raise scope.wrong(node.line, f"{len(element.indices)} indices for an array of {len(kind.sizes)} axes")

    def at(index: n.Node, which: int | None, number: int = 1) -> Val:
        inner = scope.child()
        for letter, name in enumerate(node.names):
            inner.names[name] = Val(INTEGER, number * (letter == which))
        return expression(index, inner)

    def check_affine(index: n.Node, which: int, zero: Val, first: Val) -> None:
        """The second and the last are as many steps away; what is not known before the run is taken to be so."""
        last = int(extents[which].value) - 1 if which < len(extents) and extents[which].known else 2
        for number in sorted({min(2, last), last}):
            reached = at(index, which, number)
            if not (zero.known and first.known and reached.known):
                return
            step = int(first.value) - int(zero.value)
            if int(reached.value) != int(zero.value) + number * step:
                raise scope.wrong(
                    node.line, f"tensor_access does not go in equal steps along {node.names[which]}: the index is"
                    f" {zero.value} at 0, {first.value} at 1, {reached.value} at {number}"
                )  # fmt: skip

    begin: list[tuple[Val, int]] = []
    steps: list[list[tuple[Val, Val, int]]] = [[] for _ in node.names]
    for axis, index in enumerate(element.indices):
        stride = 1
        for after in kind.sizes[axis + 1 :]:
            stride *= after
        zero = at(index, None)
        begin.append((zero, stride))
        for which in range(len(node.names)):
            first = at(index, which)
            check_affine(index, which, zero, first)
            steps[which].append((first, zero, stride))
    strides = tuple(_stride(axis_steps) for axis_steps in steps)
    return _start(begin, base, nbytes(kind.element)), tuple(extents), strides, kind.element


def _base(node: n.Access, element: n.Index, scope: Scope) -> tuple[CslArray, Val]:
    """The array that is read, and its address."""
    array = lvalue(element.array, scope)
    if isinstance(array.type, Pointer):
        array = load(array, scope)
        to = array.type.to
        kind = to if isinstance(to, CslArray) else CslArray((0,), to)
        base = Val(INTEGER, array.value, array.code)
    elif isinstance(array.type, CslArray) and isinstance(array.spot, MemoryAddress):
        kind = array.type
        begin = array.spot.address
        base = Val(INTEGER, begin) if isinstance(begin, int) else Val(INTEGER, code=begin)
    else:
        raise scope.wrong(node.line, f"tensor_access of a {array.type} that is not in memory")
    return kind, base


def _start(parts: list[tuple[Val, int]], base: Val, size: int) -> Val:
    """The address of the first element: base + size * sum(index * stride)."""
    if all(index.known for index, _ in parts) and base.known:
        return Val(INTEGER, sum(int(index.value) * stride * size for index, stride in parts) + int(base.value))
    text = " + ".join(f"{number(index)} * {stride * size}" for index, stride in parts)
    return Val(INTEGER, code=f"{number(base)} + {text}")


def _stride(steps: list[tuple[Val, Val, int]]) -> Val:
    """Elements from one index to the next: sum((f(1) - f(0)) * stride)."""
    if all(first.known and zero.known for first, zero, _ in steps):
        return Val(INTEGER, sum((int(first.value) - int(zero.value)) * stride for first, zero, stride in steps))
    text = " + ".join(f"({number(first)} - {number(zero)}) * {stride}" for first, zero, stride in steps)
    return Val(INTEGER, code=text)


def _changed(change: Any, name: str, nargs: int) -> Any:
    def builtin(node: n.Builtin, scope: Scope) -> Val:
        dsd = expression(node.arguments[0], scope)
        by = expression(node.arguments[1], scope)
        if isinstance(by.type, CslArray) and isinstance(by.spot, MemoryAddress):  # an array stands for where it lies
            by = address(by, scope, node.line)
        extra: tuple[int, ...] = ()
        if nargs == 3:
            extra = (nbytes(type_of_node(node.arguments[2], scope)),)
        if not is_dsd(dsd.type):
            raise scope.wrong(node.line, f"{node.name} of a {dsd.type}, which is no descriptor")
        if name != "set_base" and not is_int(by.type):
            raise scope.wrong(node.line, f"{node.name} by a {by.type}, which is no whole number")
        if dsd.known and by.known:
            try:
                return Val(dsd.type, change(dsd.value, by.value, *extra))
            except ArithmeticError as error:
                raise scope.wrong(node.line, str(error)) from error
        scope.spend(COSTS.arithmetic)
        text = "".join(f", {argument}" for argument in extra)
        return Val(dsd.type, code=f"{name}({code(dsd, scope)}, {code(by, scope)}{text})")

    return builtin


def _get_dsr(node: n.Builtin, scope: Scope) -> Val:
    kind = type_of_node(node.arguments[0], scope)
    if kind.name not in DSRS:
        raise scope.wrong(node.line, f"@get_dsr of {kind}: there are {', '.join(DSRS)}")
    return Val(kind, Dsr(kind.name, int(known(node.arguments[1], scope, "a register's number").value)))


BUILTINS: dict[str, Any] = {
    "@get_dsd": _get_dsd, "@get_dsr": _get_dsr, "@increment_dsd_offset": _changed(increment, "increment", 3),
    "@set_dsd_base_addr": _changed(set_base, "set_base", 2), "@set_dsd_length": _changed(set_length, "set_length", 2),
    "@set_dsd_stride": _changed(set_stride, "set_stride", 2),
}  # fmt: skip
