"""Files with their parameters: their declarations, each computed when it is first asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl.language.conversions import coerce
from meshrt.csl.language.expressions import expression, known, type_of_node
from meshrt.csl.language.image import WORD
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.types import BOOL, FLOAT, INT, STRUCT, Callable, CslArray, dtype, is_number, nbytes
from meshrt.csl.language.values import FunctionRef, MemoryAddress, Module, Slot, StaticVariable, Val
from meshrt.csl.syntax import nodes as n

FUNCTION = Callable((), None)  # the type of a function by its name; the signature is looked at where it is called


def lookup(module: Module, name: str) -> Val | None:
    """What a name of a file stands for, None if there is no such name. CslError."""
    value = module.values.get(name)
    if value is not None:
        return value
    node = module.tree.declarations.get(name)
    if node is None:
        return None
    scope = Scope(module)
    if name in module.busy:
        raise scope.wrong(node.line, f"{name} needs itself to be known")
    module.busy.add(name)
    if isinstance(node, n.Function):
        value = Val(FUNCTION, FunctionRef(module, node))
    else:
        assert isinstance(node, n.Declaration)
        value = _declare(node, scope)
    module.busy.discard(name)
    module.values[name] = value
    return value


def _declare(node: n.Declaration, scope: Scope) -> Val:
    module = scope.module
    kind = None if node.type is None else type_of_node(node.type, scope)
    if node.kind == "param":
        given = module.parameters.get(node.name)
        if given is None:
            if node.value is None:
                raise scope.wrong(node.line, f"parameter {node.name} is used and was not given")
            given = expression(node.value, scope)
        return given if kind is None else coerce(given, kind, scope, node.line)
    value = None if node.value is None else expression(node.value, scope)
    if value is not None and kind is not None:
        value = coerce(value, kind, scope, node.line)
    kind = kind if value is None else value.type
    if node.kind == "const":
        if value is None or (value.value is None and value.spot is not None and not isinstance(kind, CslArray)):
            raise scope.wrong(node.line, f"{node.name} is const and has no value that is known before the run")
        if (
            isinstance(kind, CslArray)
            and nbytes(kind)
            and module.image is not None
            and not isinstance(value.spot, MemoryAddress)
        ):
            return Val(kind, value.value, spot=MemoryAddress(_allocated(node, kind, value.value, scope)))
        return Val(kind, value.value, spot=value.spot if isinstance(kind, CslArray) else None)
    return variable(node, kind, value, scope, module.values)


def variable(node: n.Declaration, kind: Any, value: Val | None, scope: Scope, names: dict[str, Val]) -> Val:
    """A var that lives in a core, or, in the layout, before the run."""
    image = scope.module.image
    if kind in (INT, FLOAT) and image is not None:
        raise scope.wrong(node.line, f"var {node.name} has no type: a number alone does not say how wide it is")
    if image is None:
        initial = initial_value(kind) if value is None else value.value
        return Val(
            kind, initial.copy() if isinstance(initial, np.ndarray) else initial, spot=StaticVariable(names, node.name)
        )
    if nbytes(kind):
        given = None if value is None else value.value
        if value is not None and given is None and isinstance(value.spot, MemoryAddress) and isinstance(kind, CslArray):
            at = int(value.spot.address)
            given = image.memory[at : at + nbytes(kind)].view(dtype(kind.element)).reshape(kind.sizes)
        return Val(kind, spot=MemoryAddress(_allocated(node, kind, given, scope)))
    image.objects.append(None if value is None else value.value)
    return Val(kind, spot=Slot(len(image.objects) - 1))


def _allocated(node: n.Declaration, kind: Any, value: Any, scope: Scope) -> int:
    image = scope.module.image
    address: int = image.allocate(nbytes(kind), node.name, scope.at(node.line), alignment(node, kind, scope))
    if value is not None:
        size = nbytes(kind)
        of = dtype(kind.element if isinstance(kind, CslArray) else kind)
        image.memory[address : address + size].view(of)[:] = np.asarray(value).astype(of).ravel()
    return address


def alignment(node: n.Declaration, kind: Any, scope: Scope) -> int:
    """What align() says, and at least a word of 32 bits, or one number of that type. CslError."""
    least = natural_alignment(kind)
    if node.aligned is None:
        return least
    nbytes = known(node.aligned, scope, "an alignment").value
    if not isinstance(nbytes, int | np.integer) or nbytes < 1 or nbytes & (nbytes - 1):
        raise scope.wrong(node.line, f"align({nbytes}) of {node.name}: a power of two is asked for")
    return max(least, int(nbytes))


def natural_alignment(kind: Any) -> int:
    """A word of 32 bits, or more where a number is wider: memory is looked at as numbers of one width."""
    return max(WORD, int(dtype(kind.element if isinstance(kind, CslArray) else kind).itemsize))


def initial_value(kind: Any) -> Any:
    if isinstance(kind, CslArray):
        return np.zeros(kind.sizes, dtype(kind.element) if nbytes(kind.element) else object)
    if is_number(kind):
        return dtype(kind).type(0)
    return False if kind is BOOL else {} if kind is STRUCT else 0


def open_module(tree: n.File, parameters: dict[str, Val], image: Any, program: Any) -> Module:
    """A file with its parameters: what it imports is opened and what stands in its comptime blocks is done. CslError.

    Other declarations are looked at when they are used: one that is not takes no memory.
    """
    module = Module(tree, parameters, image, program)
    for name in tree.order:
        node = tree.declarations[name]
        if (
            isinstance(node, n.Declaration)
            and isinstance(node.value, n.Builtin)
            and node.value.name == "@import_module"
        ):
            lookup(module, name)
    for block in tree.blocks:
        if isinstance(block, n.Comptime):
            program.language.statement(block.body, Scope(module))
    return module
