"""Builtins that say what a tile is: its code, tasks, queues, routes, what the host sees."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl.costs import COSTS
from meshrt.csl.language.conversions import code
from meshrt.csl.language.expressions import expression, known, lvalue
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.types import STRUCT, TYPES, VOID, Callable, CslArray, Pointer, nbytes
from meshrt.csl.language.values import FunctionRef, MemoryAddress, Val
from meshrt.csl.machine.router import check_color
from meshrt.csl.machine.vectors import FifoName
from meshrt.csl.syntax import nodes as n

NOTHING = Val(VOID)


def _layout(node: n.Builtin, scope: Scope) -> Any:
    if scope.module.image is not None:
        raise scope.wrong(node.line, f"{node.name} is of the layout, this is a tile's code")
    return scope.module.program


def _tile(node: n.Builtin, scope: Scope) -> Any:
    if scope.module.image is None:
        raise scope.wrong(node.line, f"{node.name} is of a tile's code, this is the layout")
    return scope.module.image


def _numbers(node: n.Builtin, scope: Scope, of: int) -> list[int]:
    return [int(known(argument, scope, "a coordinate").value) for argument in node.arguments[:of]]


def _set_rectangle(node: n.Builtin, scope: Scope) -> Val:
    program = _layout(node, scope)
    program.size = tuple(_numbers(node, scope, 2))
    return NOTHING


def _get_rectangle(node: n.Builtin, scope: Scope) -> Val:
    width, height = scope.module.program.size
    i16 = TYPES["i16"]
    return Val(STRUCT, {"width": Val(i16, np.int16(width)), "height": Val(i16, np.int16(height))})


def _set_tile_code(node: n.Builtin, scope: Scope) -> Val:
    program = _layout(node, scope)
    x, y = _numbers(node, scope, 2)
    width, height = program.size
    if not (0 <= x < width and 0 <= y < height):
        raise scope.wrong(node.line, f"tile ({x}, {y}) is not in the rectangle of {width} x {height}")
    path = known(node.arguments[2], scope, "a tile's code").value
    given = known(node.arguments[3], scope, "a tile's parameters").value if len(node.arguments) > 3 else {}
    program.set_tile(x, y, path, given, scope, node.line)
    return NOTHING


def _set_color_config(node: n.Builtin, scope: Scope) -> Val:
    program = _layout(node, scope)
    x, y = _numbers(node, scope, 2)
    color = int(known(node.arguments[2], scope, "a colour").value)
    config = known(node.arguments[3], scope, "a colour's routes").value
    width, height = program.size
    if not (0 <= x < width and 0 <= y < height):
        raise scope.wrong(node.line, f"tile ({x}, {y}) is not in the rectangle of {width} x {height}")
    check_color(color, scope.at(node.line))
    program.routes.setdefault((x, y, color), {}).update(config)
    program.route_locations[x, y, color] = scope.at(node.line)
    return NOTHING


def _set_local_color_config(node: n.Builtin, scope: Scope) -> Val:
    color = int(known(node.arguments[0], scope, "a colour").value)
    config = known(node.arguments[1], scope, "a colour's routes").value
    check_color(color, scope.at(node.line))
    _tile(node, scope).colors.append((color, config, scope.at(node.line)))
    return NOTHING


def _export_name(node: n.Builtin, scope: Scope) -> Val:
    program = _layout(node, scope)
    name = known(node.arguments[0], scope, "a name").value
    program.names[name] = known(node.arguments[1], scope, "a type").value
    return NOTHING


def _export_symbol(node: n.Builtin, scope: Scope) -> Val:
    image = _tile(node, scope)
    exported = lvalue(node.arguments[0], scope)
    if len(node.arguments) > 1:
        name = known(node.arguments[1], scope, "a name").value
    elif isinstance(node.arguments[0], n.Name):
        name = node.arguments[0].name
    else:
        raise scope.wrong(node.line, "@export_symbol of what has no name")
    if not isinstance(exported.type, Callable | Pointer | CslArray) and not isinstance(exported.spot, MemoryAddress):
        raise scope.wrong(
            node.line, f"@export_symbol of a {exported.type}: functions, and what lies in memory, can be seen"
        )
    image.exports[name] = exported
    return NOTHING


def _bind(kind: str) -> Any:
    def bind(node: n.Builtin, scope: Scope) -> Val:
        image = _tile(node, scope)
        task = expression(node.arguments[0], scope)
        number = int(known(node.arguments[1], scope, "a task's number").value)
        if not isinstance(task.value, FunctionRef) or task.value.node.kind != "task":
            raise scope.wrong(node.line, f"{node.name} of what is no task")
        key = number if kind != "control" else number + CONTROL
        if key in image.tasks:
            raise scope.wrong(node.line, f"number {number} has {image.tasks[key].node.name} already")
        image.tasks[key] = task.value
        image.kinds[key] = kind
        return NOTHING

    return bind


CONTROL, TEARDOWN = 1000, 2000  # control tasks, and handlers of teardowns, have numbers of their own


def task_number(task: Val, scope: Scope, line: int) -> Val:
    """A number of a task, by itself or by its task."""
    if isinstance(task.value, FunctionRef):
        for number, ref in scope.image.tasks.items():
            if ref.node is task.value.node:
                return Val(TYPES["local_task_id"], number)
        raise scope.wrong(line, f"{task.value.node.name} has no number: @bind_local_task gives it one")
    return task


def _get_filter_id(node: n.Builtin, scope: Scope) -> Val:
    """A colour's filter has its number; that there is one, <tile_config> sees in the run."""
    return Val(TYPES["u16"], np.uint16(known(node.arguments[0], scope, "a colour").value))


def _set_teardown_handler(node: n.Builtin, scope: Scope) -> Val:
    image = _tile(node, scope)
    handler = expression(node.arguments[0], scope)
    color = int(known(node.arguments[1], scope, "a colour").value)
    if not isinstance(handler.value, FunctionRef):
        raise scope.wrong(node.line, "@set_teardown_handler takes a function and a colour")
    if color in image.teardown:
        raise scope.wrong(node.line, f"colour {color} has a teardown handler already")
    image.teardown[color] = TEARDOWN + color
    image.tasks[TEARDOWN + color] = handler.value
    return NOTHING


def _mark(action: str) -> Any:
    def mark(node: n.Builtin, scope: Scope) -> Val:
        image = _tile(node, scope)
        task = task_number(expression(node.arguments[0], scope), scope, node.line)
        if scope.writer is None:
            number = int(task.value)
            if action == "activate":
                image.active.append(number)
            elif action == "block":
                image.blocked.add(number)
            else:
                image.blocked.discard(number)
            return NOTHING
        scope.writer.cost += COSTS.arithmetic
        scope.writer.charge()
        scope.writer.line(f"c.{action}({code(task, scope)})")
        return NOTHING

    return mark


def _initialize_queue(node: n.Builtin, scope: Scope) -> Val:
    image = _tile(node, scope)
    queue = known(node.arguments[0], scope, "a queue")
    config = known(node.arguments[1], scope, "a queue's colour").value if len(node.arguments) > 1 else {}
    if "color" not in config:
        return NOTHING
    table = image.inputs if queue.type is TYPES["input_queue"] else image.outputs
    table[int(queue.value)] = int(config["color"].value)
    return NOTHING


def _allocate_fifo(node: n.Builtin, scope: Scope) -> Val:
    image = _tile(node, scope)
    buffer = lvalue(node.arguments[0], scope)
    if not isinstance(buffer.type, CslArray):
        raise scope.wrong(node.line, f"@allocate_fifo of a {buffer.type}: an array is its memory")
    options = known(node.arguments[1], scope, "a FIFO's options").value if len(node.arguments) > 1 else {}
    marks = {}
    for name in ("activate_push", "activate_pop"):
        marks[name] = int(task_number(options[name], scope, node.line).value) if name in options else None
    fifo = FifoName(len(image.fifos), buffer.type.count, nbytes(buffer.type.element), **marks)
    image.fifos.append(fifo)
    return Val(TYPES["fifo"], fifo)


def _rpc(node: n.Builtin, scope: Scope) -> Val:
    return NOTHING  # which colour launches come by is memcpy's own affair here


BUILTINS: dict[str, Any] = {
    "@set_rectangle": _set_rectangle, "@get_rectangle": _get_rectangle, "@set_tile_code": _set_tile_code,
    "@set_color_config": _set_color_config, "@set_local_color_config": _set_local_color_config,
    "@export_name": _export_name, "@export_symbol": _export_symbol, "@bind_local_task": _bind("local"),
    "@bind_data_task": _bind("data"), "@bind_control_task": _bind("control"), "@activate": _mark("activate"),
    "@block": _mark("block"), "@unblock": _mark("unblock"), "@initialize_queue": _initialize_queue,
    "@allocate_fifo": _allocate_fifo, "@rpc": _rpc, "@set_teardown_handler": _set_teardown_handler,
    "@get_filter_id": _get_filter_id,
}  # fmt: skip
