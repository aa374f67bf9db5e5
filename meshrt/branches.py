"""Calls that all ranks have to make, and that only some of them would: found in the text of a program.

With several ranks such a program ends in a deadlock. One rank alone never meets it, so its text is looked at before it
runs: for a branch or a loop on what differs from rank to rank, with a transfer or another joint call inside.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from meshrt.errors import StallError

DIFFERENT = {"rank", "x0", "y0", "cores_here", "Get_rank", "offset"}  # from rank to rank
OF_A_BLOCK = {"block.x", "block.y"}  # and these; an x of something else may be the same on all
JOINT = {"fabric", "rings", "allreduce", "broadcast", "tiles", "tables", "remap", "exchange"}  # modules of calls
METHODS = re.compile(r"\.control\.(bcast|gather|allreduce|total)$|\.(phase|meet|follow|another)$")
LOCAL = {"tile_size", "square", "span"}  # of those modules, and nobody's but the caller's


def check_branches(path: str, module: ModuleType) -> None:
    """StallError for the first such call of a program's file."""
    tree = ast.parse(Path(str(module.__file__)).read_bytes())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    callers: set[str] = set()  # functions of the file that make such calls
    while more := {function.name for function in functions if any(_joint(function.body, module, callers))} - callers:
        callers |= more
    for function in functions:
        for line, test, name in _found(function, module, callers):
            raise StallError(
                f"{path}, line {line}: whether a rank calls {name} depends on `{test}`: with several ranks that is a"
                " deadlock; all ranks have to make the same calls; `positions` and `lines` choose cores"
            )


def _found(function: ast.FunctionDef, module: ModuleType, callers: set[str]) -> Iterator[tuple[int, str, str]]:
    """(line, the test, the call) where ranks part."""
    named = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and not any(isinstance(inner, ast.Call) for inner in ast.walk(node.value))
        if _differs(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = list(_joint(function.body, module, callers))
    for node in ast.walk(function):
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            test = node.test
        elif isinstance(node, ast.For):
            test = node.iter
        else:
            continue
        if not _differs(test, named):
            continue
        branches = [part if isinstance(part, list) else [part] for part in (node.body, node.orelse)]
        body_calls, else_calls = (list(_joint(part, module, callers)) for part in branches)
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return):
            else_calls += [call for call in calls if call[0] > (node.end_lineno or 0)]
        if Counter(name for _, name in body_calls) != Counter(name for _, name in else_calls):
            line, name = (body_calls or else_calls)[0]
            yield line, ast.unparse(test), name


def _differs(expression: ast.expr, named: set[str]) -> bool:
    """Is it another on other ranks? What ranks have agreed on is not."""
    if isinstance(expression, ast.Call) and METHODS.search(ast.unparse(expression.func)):
        return False
    if isinstance(expression, ast.Attribute) and (
        expression.attr in DIFFERENT or ast.unparse(expression) in OF_A_BLOCK
    ):
        return True
    if isinstance(expression, ast.Name) and expression.id in named:
        return True
    return any(_differs(child, named) for child in ast.iter_child_nodes(expression) if isinstance(child, ast.expr))


def _joint(nodes: Iterable[ast.AST], module: ModuleType, callers: set[str]) -> Iterator[tuple[int, str]]:
    """(line, name) of the calls that all ranks have to make."""
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                name = ast.unparse(inner.func)
                called = _resolved(inner.func, module)
                dotted = str(getattr(called, "__module__", "")).split(".")
                joint = dotted[:2] == ["meshrt", "mesh"] and not JOINT.isdisjoint(dotted[2:])
                if (joint and name.split(".")[-1] not in LOCAL) or name in callers or METHODS.search(name):
                    yield inner.lineno, name


def _resolved(expression: ast.expr, module: ModuleType) -> Any:
    """What a name of the module, or an attribute of one, stands for; None."""
    if isinstance(expression, ast.Name):
        return getattr(module, expression.id, None)
    if isinstance(expression, ast.Attribute):
        return getattr(_resolved(expression.value, module), expression.attr, None)
    return None
