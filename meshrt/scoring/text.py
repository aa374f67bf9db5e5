"""What the text of a program that is scored may use: nothing that reaches what counts, or brings numbers by another way
than the mesh. It is looked at before a line of it runs.

That keeps programs that search to the machine. It is no sandbox: who runs text that others wrote needs one.
"""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import meshrt.mesh
from meshrt.errors import UsageError

MODULES = (  # that a program may import from
    "__future__", "collections", "contextlib", "dataclasses", "functools", "itertools", "math", "typing", "ml_dtypes",
    "numpy", "meshrt.errors", "meshrt.mesh.block", "meshrt.mesh.collectives", "meshrt.mesh.exchange",
    "meshrt.mesh.tiles", "meshrt.mesh.wires.fabric", "meshrt.mesh.wires.receiving", "meshrt.mesh.wires.routes",
    "meshrt.mesh.wires.tables", "meshrt.options", "meshrt.program",
)  # fmt: skip
STAGE = "meshrt.mesh.wires.software", "stage"  # of that module it alone: it can only take time
NAMES = frozenset(  # that reach what counts, whoever has them
    ("audit", "clock", "comm", "control", "core", "counters", "host", "ledger", "link_bytes", "link_free", "maps",
     "notes", "ramp_bytes", "scouts", "segments", "timed", "traffic", "uses", "watch", "entries", "enters",
     "leaves", "book", "landing", "lane", "arrivals", "schedule", "over", "peak", "common", "extra", "arrays",
     # of Python's and NumPy's modules: what runs texts, makes objects anew, reads files or any memory
     "replace", "get_type_hints", "ForwardRef", "runstring", "rundocs", "ctypes", "as_strided", "load", "fromfile",
     "memmap", "loadtxt", "genfromtxt", "fromregex", "update_wrapper", "wraps")
)  # fmt: skip
STRINGS = frozenset(("replace",))  # that texts have as well: refused where it is a module's
CALLS = frozenset(
    ("compile", "delattr", "eval", "exec", "getattr", "globals", "locals", "open", "setattr", "vars", "__import__")
)


def check_text(path: str) -> None:
    """UsageError, with the line, for what could touch counters, or bring numbers by another way than the mesh."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return  # who loads it says what is wrong
    modules = _imported(tree)
    nodes = [*_nodes(tree)]
    bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        fault = _refused(node) or _of_modules(node, modules, bases)
        if fault:
            raise UsageError(
                f"{path}, line {getattr(node, 'lineno', 1)}: {fault}; a program that is scored may not (docs/start.md)"
            )


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All of a text, and of the texts in it that annotations are made of."""
    for node in ast.walk(tree):
        yield node
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            for text in ast.walk(part) if isinstance(part, ast.AST) else ():
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    try:
                        inside = ast.parse(text.value, mode="eval")
                    except (SyntaxError, ValueError):
                        continue  # words
                    yield from (ast.copy_location(inner, text) for inner in ast.walk(inside))


def _refused(node: ast.AST) -> str | None:
    match node:
        case ast.Import(names=names) if wrong := [alias.name for alias in names if not _known(alias.name)]:
            return f"imports {wrong[0]}"
        case ast.ImportFrom(module="meshrt.mesh", names=names) if {a.name for a in names} <= {*meshrt.mesh.__all__}:
            return None
        case ast.ImportFrom(module=module, names=names) if not _known(module or ""):
            if module == STAGE[0] and all(alias.name == STAGE[1] for alias in names):
                return None
            return f"imports from {module or '.'}"
        case ast.ImportFrom(module=str(module), names=names):
            for alias in names:
                if alias.name in (*NAMES, "*") or alias.name.startswith("_"):
                    return f"imports {alias.name} from {module}"
                if (member := _member(_loaded(module), alias.name)) is not None and not _known(member.__name__):
                    return f"imports {alias.name} from {module}"
        case ast.Attribute(attr=name) if (name in NAMES and name not in STRINGS) or name.startswith("_"):
            return f"uses .{name}"
        case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()) if name != "tokens":  # of a phase
            return f"sets .{name}"
        case ast.MatchClass(patterns=patterns, kwd_attrs=names) if patterns or names:
            return f"takes {ast.unparse(node.cls)} apart"
        case ast.keyword(arg="stream", value=ast.Constant(value=False)):
            return None
        case ast.keyword(arg="stream") | ast.Constant(value="stream"):
            return "sends with stream, whose end nobody would wait for"
        case ast.Name(id=name) if name in CALLS or (name.startswith("__") and name != "__name__"):
            return f"uses {name}"
    return None


def _known(module: str) -> bool:
    return any(module == allowed or module.startswith(allowed + ".") for allowed in MODULES)


def _has_known(package: str) -> bool:
    return any(allowed.startswith(package + ".") for allowed in MODULES)


def _imported(tree: ast.AST) -> dict[str, ModuleType]:
    """The modules that a text names, by these names."""
    modules: dict[str, ModuleType] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    top = alias.name.partition(".")[0]
                    if _known(alias.name) and (module := _loaded(alias.name if alias.asname else top)) is not None:
                        modules[alias.asname or top] = module
            case ast.ImportFrom(module=str(stem), names=names) if _known(stem):
                for alias in names:
                    if (member := _member(_loaded(stem), alias.name)) is not None:
                        modules[alias.asname or alias.name] = member
    return modules


def _loaded(name: str) -> ModuleType | None:
    """A module by its name; None where there is none, as who loads the program will say."""
    try:
        return import_module(name)
    except ImportError:
        return None


def _member(module: ModuleType | None, name: str) -> ModuleType | None:
    """The module that a module has under that name."""
    member = getattr(module, name, None)
    return member if isinstance(member, ModuleType) else None


def _of_modules(node: ast.AST, modules: dict[str, ModuleType], bases: set[int]) -> str | None:
    """Does it reach from a module into one that may not be imported, or does it hand a module on?"""
    if isinstance(node, ast.Name) and node.id in modules and id(node) not in bases:
        return f"hands the module {node.id} on"
    if isinstance(node, ast.Attribute) and (base := _module(node.value, modules)) is not None:
        name = f"{base.__name__}.{node.attr}"
        package = _has_known(base.__name__) and not _known(base.__name__)
        member = _member(base, node.attr)
        inside = name if member is None else member.__name__
        if node.attr in STRINGS or ((package or member) and not _known(inside) and not _has_known(inside)):
            return f"uses {ast.unparse(node)}"
    return None


def _module(node: ast.AST, modules: dict[str, ModuleType]) -> ModuleType | None:
    """The module that a name, or a chain of attributes, stands for."""
    if isinstance(node, ast.Name):
        return modules.get(node.id)
    if isinstance(node, ast.Attribute) and (base := _module(node.value, modules)) is not None:
        return _member(base, node.attr)
    return None
