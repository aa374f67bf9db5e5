"""The Python of a program's functions as words for the compiled machine (native/code.c), four a step.

What is not understood becomes a step at which the machine gives up, and Python runs instead: nothing need be complete.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrt.csl.language.image import Image
from meshrt.csl.machine.lowered import KIND, SHORT, TYPES, Lowered, Missing
from meshrt.csl.machine.vectors import Dsr, Mem

STEPS = (
    "CONSTANT", "LOCAL", "SET_LOCAL", "LOAD", "STORE", "OBJECT", "SET_OBJECT", "BINARY", "UNARY", "NOT", "JUMP",
    "JUMP_IF_NOT", "SPEND", "CALL", "RETURN", "POP", "CONVERT", "BITCAST", "INTEGER", "SET_BASE", "SET_LENGTH",
    "SET_STRIDE", "INCREMENT", "POINTER", "LOAD_REGISTER", "START", "ACTIVATE", "BLOCK", "UNBLOCK", "UNBLOCK_COMMANDS",
    "STAMP", "RESET_STAMPS", "COORDINATE", "MAP", "MAP_NEXT", "NATIVE", "IN_RANGE", "COPY", "HOLDS", "PLACE", "MISSING",
)  # fmt: skip
NUMBER = {name: at for at, name in enumerate(STEPS)}
VIEWS = {f"m_{np.dtype(of).name}": at for at, of in enumerate(TYPES) if 0 < at < 9}
# Operators, as native/values.c numbers them: of two operands, and of one.
OPERATORS: dict[type, int] = {
    ast.Add: 0, ast.Sub: 1, ast.Mult: 2, ast.Div: 3, ast.BitAnd: 4, ast.BitOr: 5, ast.BitXor: 6, ast.LShift: 7,
    ast.RShift: 8, ast.Eq: 9, ast.NotEq: 10, ast.Lt: 11, ast.Gt: 12, ast.LtE: 13, ast.GtE: 14,
}  # fmt: skip
DIVISIONS = {"divide": 15, "remainder": 16}  # of whole numbers, which CSL divides otherwise than Python: functions
SIGNS: dict[type, int] = {ast.USub: OPERATORS[ast.Sub], ast.Invert: OPERATORS[ast.BitXor]}


def write(lowered: Lowered) -> None:
    """All functions that were asked for, and what those ask for."""
    while lowered.unwritten:
        image, name, at = lowered.unwritten.pop()
        lowered.functions[at] = LoweredFunction(lowered, image).write(image.sources[name])


@dataclass
class LoweredFunction:
    """One function that is being written."""

    into: Lowered
    image: Image
    names: dict[str, int] = field(default_factory=dict)
    loops: list[tuple[list[int], list[int]]] = field(default_factory=list)  # jumps to the end, and to go on

    def write(self, source: str) -> tuple[int, int, int]:
        """Where its steps begin, and how many arguments and locals it has."""
        tree = ast.parse(source).body[0]
        assert isinstance(tree, ast.FunctionDef)
        begin = len(self.into.code) // 4
        for parameter in tree.args.args[1:]:
            self.local(parameter.arg)
        arguments = len(self.names)
        self.body(tree.body)
        return begin, arguments, len(self.names)

    def step(self, name: str, a: int = 0, b: int = 0, c: int = 0) -> int:
        """Write a step; where it is."""
        self.into.code += [NUMBER[name], a, b, c]
        return len(self.into.code) // 4 - 1

    @property
    def here(self) -> int:
        return len(self.into.code) // 4

    def lead(self, steps: list[int], word: int = 1) -> None:
        """Jumps lead here."""
        for step in steps:
            self.into.code[4 * step + word] = self.here

    def local(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def constant(self, value: Any) -> None:
        self.step("CONSTANT", self.into.constant(value, self.image))

    # Statements

    def body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            try:
                handler = getattr(self, f"_{type(statement).__name__.lower()}", None)
                if handler is None:
                    raise Missing
                handler(statement)
            except (Missing, KeyError, ValueError, TypeError, AttributeError, AssertionError):
                self.step("MISSING")

    def _return(self, node: ast.Return) -> None:
        self.value(node.value) if node.value is not None else self.constant(None)
        self.step("RETURN")

    def _pass(self, node: ast.Pass) -> None:
        pass

    def _augassign(self, node: ast.AugAssign) -> None:
        self.step("SPEND", self.into.constant(float(ast.literal_eval(node.value)), self.image))

    def _assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Name):
            if target.id in VIEWS or target.id == "o":
                return
            if isinstance(node.value, ast.Call) and called(node.value) == "start":
                self._start(node.value)
                return
            self.value(node.value)
            self.step("SET_LOCAL", self.local(target.id))
            return
        if not isinstance(target, ast.Subscript):
            raise Missing
        if isinstance(target.value, ast.Attribute):  # c.dsrs[kind, index] = (vector, options)
            kind, index = ast.literal_eval(target.slice)
            assert isinstance(node.value, ast.Tuple)
            self.value(node.value.elts[0])
            options = self.into.option(self.known(node.value.elts[1]))
            self.step("LOAD_REGISTER", self.into.register(Dsr(kind, index)), options)
            return
        assert isinstance(target.value, ast.Name)
        name = target.value.id
        if name == "o":
            self.value(node.value)
            self.step("SET_OBJECT", ast.literal_eval(target.slice))
        elif isinstance(target.slice, ast.Slice):
            self._copy(target, node.value)
        else:
            self.value(node.value)
            self.value(target.slice)
            self.step("STORE", VIEWS[name])

    def _copy(self, target: ast.Subscript, value: ast.expr) -> None:
        """An array of an array."""
        assert isinstance(target.slice, ast.Slice) and isinstance(target.slice.upper, ast.BinOp)
        count = ast.literal_eval(target.slice.upper.right)
        if not (isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice)):
            raise Missing
        assert isinstance(target.value, ast.Name) and isinstance(value.value, ast.Name)
        if target.value.id != value.value.id:
            raise Missing
        for bound in (target.slice.lower, value.slice.lower):
            assert bound is not None
            self.value(bound)
        self.step("COPY", VIEWS[target.value.id], count)

    def _if(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.IsNot):
            return  # a start waits by itself
        self.value(node.test)
        past = [self.step("JUMP_IF_NOT")]
        self.body(node.body)
        if node.orelse:
            end = [self.step("JUMP")]
            self.lead(past)
            self.body(node.orelse)
            past = end
        self.lead(past)

    def _while(self, node: ast.While) -> None:
        begin = self.here
        self.loops.append(([], []))
        self.body(node.body)
        breaks, goes_on = self.loops.pop()
        self.lead(goes_on)
        self.step("JUMP", begin)
        self.lead(breaks)

    def _for(self, node: ast.For) -> None:
        """for name in numbers(type, begin, end, step)"""
        if not (isinstance(node.iter, ast.Call) and called(node.iter) == "numbers"):
            raise Missing
        assert isinstance(node.target, ast.Name) and isinstance(node.iter.args[0], ast.Name)
        kind = KIND[node.iter.args[0].id]
        stem = f" {node.target.id} "
        at, end, by = (self.local(f"{stem}{part}") for part in ("at", "end", "by"))
        for local, argument in zip((at, end, by), node.iter.args[1:], strict=True):
            self.value(argument)
            self.step("SET_LOCAL", local)
        begin = self.step("IN_RANGE", at)
        self.step("LOCAL", at)
        self.step("CONVERT", kind)
        self.step("SET_LOCAL", self.local(node.target.id))
        self.loops.append(([], []))
        self.body(node.body)
        breaks, goes_on = self.loops.pop()
        self.lead(goes_on)
        self.step("LOCAL", at)
        self.step("LOCAL", by)
        self.step("BINARY", OPERATORS[ast.Add])
        self.step("SET_LOCAL", at)
        self.step("JUMP", begin)
        self.lead([begin], 2)
        self.lead(breaks)

    def _break(self, node: ast.Break) -> None:
        self.loops[-1][0].append(self.step("JUMP"))

    def _continue(self, node: ast.Continue) -> None:
        self.loops[-1][1].append(self.step("JUMP"))

    def _expr(self, node: ast.Expr) -> None:
        value = node.value
        if isinstance(value, ast.Yield) or (isinstance(value, ast.Constant) and value.value is None):
            return
        if isinstance(value, ast.YieldFrom):
            assert isinstance(value.value, ast.Call)
            if called(value.value) == "map_over":
                self._map(value.value)
                return
        elif isinstance(value, ast.Call) and self._does(value):
            return
        self.value(value)
        self.step("POP")

    def _does(self, call: ast.Call) -> bool:
        """A call that does something to the core."""
        name = called(call)
        if isinstance(call.func, ast.Attribute):
            self.value(call.args[0])
            self.step({"activate": "ACTIVATE", "block": "BLOCK", "unblock": "UNBLOCK"}[name])
        elif name == "unblock_cmd_stream":
            self.step("UNBLOCK_COMMANDS")
        elif name == "reset_tsc":
            self.step("RESET_STAMPS")
        elif name in ("get_timestamp", "held"):
            self.value(call.args[1])
            self.step("STAMP" if name == "get_timestamp" else "HOLDS")
        else:
            return False
        return True

    def _start(self, call: ast.Call) -> None:
        _, of, operands, options = call.args
        assert isinstance(operands, ast.Tuple)
        for operand in operands.elts:
            self.value(operand)
        self.step("START", self.into.operation(self.known(of)), len(operands.elts),
                  self.into.option(self.known(options)))  # fmt: skip

    def _map(self, call: ast.Call) -> None:
        _, function, operands, target, types = call.args
        assert isinstance(function, ast.Name) and isinstance(operands, ast.Tuple)
        kinds = [SHORT[kind] for kind in self.known(types)]
        writes = not (isinstance(target, ast.Constant) and target.value is None)
        count = len(operands.elts)
        if count > 4:
            raise Missing
        for operand in (*operands.elts, *([target] if writes else [])):
            self.value(operand)
        self.into.maps.append(
            (self.into.function(self.image, function.id), count, int(writes), *kinds, *[-1] * (5 - len(kinds)))
        )
        self.step("MAP", len(self.into.maps) - 1)
        begin = self.step("MAP_NEXT")
        self.step("JUMP", begin)
        self.lead([begin])

    # Expressions

    def known(self, node: ast.expr) -> Any:
        """What a constant's name stands for."""
        if not isinstance(node, ast.Name):
            raise Missing
        return self.image.space[node.id]

    def value(self, node: ast.expr) -> None:
        """Write what puts it on the stack. Missing."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, float):
                raise Missing
            self.constant(node.value)
        elif isinstance(node, ast.Name):
            if node.id in self.names:
                self.step("LOCAL", self.names[node.id])
            else:
                self.constant(self.known(node))
        elif isinstance(node, ast.Attribute):
            self.step("COORDINATE", ("x", "y").index(node.attr))
        elif isinstance(node, ast.BinOp):
            self._two(OPERATORS[type(node.op)], node.left, node.right)
        elif isinstance(node, ast.Compare):
            self._two(OPERATORS[type(node.ops[0])], node.left, node.comparators[0])
        elif isinstance(node, ast.UnaryOp):
            self.value(node.operand)
            if isinstance(node.op, ast.Not):
                self.step("NOT")
            else:
                self.step("UNARY", SIGNS[type(node.op)])
        elif isinstance(node, ast.IfExp | ast.BoolOp):
            self._choice(node)
        elif isinstance(node, ast.Subscript):
            assert isinstance(node.value, ast.Name)
            if node.value.id == "o":
                self.step("OBJECT", ast.literal_eval(node.slice))
            else:
                self.value(node.slice)
                self.step("LOAD", VIEWS[node.value.id])
        elif isinstance(node, ast.YieldFrom):
            assert isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
            for argument in node.value.args[1:]:
                self.value(argument)
            self.step("CALL", self.into.function(self.image, node.value.func.id))
        elif isinstance(node, ast.Call):
            self._call(node)
        else:
            raise Missing

    def _two(self, operator: int, left: ast.expr, right: ast.expr) -> None:
        self.value(left)
        self.value(right)
        self.step("BINARY", operator)

    def _choice(self, node: ast.IfExp | ast.BoolOp) -> None:
        """a if b else c; a and b; a or b"""
        if isinstance(node, ast.IfExp):
            test, then, otherwise = node.test, node.body, node.orelse
        elif len(node.values) != 2:
            raise Missing
        elif isinstance(node.op, ast.And):
            test, then, otherwise = node.values[0], node.values[1], ast.Constant(0)
        else:
            test, then, otherwise = node.values[0], ast.Constant(1), node.values[1]
        self.value(test)
        past = [self.step("JUMP_IF_NOT")]
        self.value(then)
        end = [self.step("JUMP")]
        self.lead(past)
        self.value(otherwise)
        self.lead(end)

    def _call(self, call: ast.Call) -> None:
        name, arguments = called(call), call.args
        if isinstance(call.func, ast.Attribute) or (arguments and getattr(arguments[0], "id", "") == "c"):
            raise Missing
        if name in ("set_base", "set_length", "set_stride", "increment"):
            for argument in arguments[:2]:
                self.value(argument)
            nbytes = ast.literal_eval(arguments[2]) if name == "increment" else 0
            self.step(name.upper(), nbytes)
        elif name == "Mem" and call.keywords:
            self._memory({str(keyword.arg): keyword.value for keyword in call.keywords})
        elif name == "Mem":
            self.value(arguments[0])
            if ast.literal_eval(arguments[2]) != ():
                raise Missing
            self.step("POINTER", ast.literal_eval(arguments[1]), SHORT[ast.literal_eval(arguments[4])])
        elif name in ("convert", "bitcast") or (name in KIND and name in self.image.space) or name == "int":
            self.value(arguments[0])
            if name == "int":
                self.step("INTEGER")
            else:
                kind = KIND[getattr(arguments[1], "id", "") if len(arguments) > 1 else name]
                self.step("BITCAST" if name == "bitcast" else "CONVERT", kind)
        elif name == "place_of":
            self.value(arguments[0])
            self.step("PLACE", int(ast.literal_eval(arguments[1])).bit_length() - 1)
        elif name in DIVISIONS:
            self._two(DIVISIONS[name], *arguments)
        else:
            function = self.image.space[name]
            for argument in arguments:
                self.value(argument)
            self.into.natives.append(function)
            self.step("NATIVE", len(self.into.natives) - 1, len(arguments))

    def _memory(self, parts: dict[str, ast.expr]) -> None:
        """A vector of which something is not known before: its base; its length and stride, where it has one axis."""
        fixed: dict[str, Any] = {}
        for name, part in parts.items():
            try:
                fixed[name] = ast.literal_eval(part)
            except ValueError:
                if name not in ("base", "extents", "strides"):
                    raise
        for name in ("extents", "strides"):
            if name not in fixed:
                if len(getattr(parts[name], "elts", ())) != 1:
                    raise Missing
                fixed[name] = (0,)
        self.constant(Mem(**{"base": 0, **fixed}))
        for name, step in (("base", "SET_BASE"), ("extents", "SET_LENGTH"), ("strides", "SET_STRIDE")):
            part = parts[name]
            if isinstance(part, ast.Tuple) and len(part.elts) != 1:
                continue
            self.value(part.elts[0] if isinstance(part, ast.Tuple) else part)
            self.step(step)


def called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
