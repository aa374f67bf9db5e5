"""A user's own program file: how it is loaded, and its errors as its author wants them, the file's own line first.

Modules beside the file can be imported, as with `python FILE.py`; but their folder is looked in last, so that none of
them takes the place of a module of Python's, of meshrt's or of an installed package.
"""

import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable
from functools import wraps
from inspect import CO_VARARGS
from math import isinf, isnan
from pathlib import Path
from traceback import FrameSummary, extract_tb
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from meshrt.branches import check_branches
from meshrt.errors import MeshrtError, ProgramError, StallError, UsageError
from meshrt.mesh.audit import Audit
from meshrt.options import in_short

if TYPE_CHECKING:  # what only lists programs need not load it
    from meshrt.mesh.block import Block

PACKAGE = Path(__file__).parent
END = "the end of run"  # what all ranks say when they are there
OWN_MISTAKES = (TypeError, AttributeError, NameError)  # a call or a name that does not exist


def load_file(path: Path) -> ModuleType:
    """The module of a program's file. UsageError, ProgramError."""
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {path}")
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UsageError(f"{_shown(str(path), error.filename)}, line {error.lineno}: {error.msg}") from error
    except OSError as error:
        if error.filename != str(path):  # not the program's own
            raise _told(str(path), error) from error
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:
        raise _told(str(path), error) from error
    return module


def guarded(path: str, module: ModuleType, run: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The run of a file's module: errors name the file's lines, and what it forgot to receive or to write is told."""

    @wraps(run)
    def wrapped(*args: Any, **options: Any) -> dict[str, Any]:
        machine = args[0]
        if machine.control.size == 1:  # several find out by waiting for one another
            check_branches(path, module)
        cores = hasattr(machine, "lead")  # a block of them
        if cores and machine.audit is None:
            machine.audit = Audit(path, str(module.__file__))
        try:
            result = run(*args, **options)
        except Exception as error:
            if _is_hosts(error):
                raise
            raise _told(path, error, by_shape=cores and not machine.payload) from error
        facts = _plain(path, result) if machine.control.rank == 0 else {}  # rank 0's is the report's
        if cores:
            _report_forgotten(machine, facts, run)
        _report_no_numbers(machine, facts)
        return facts

    return wrapped


def audited(run: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The run of a function that a script or a notebook has: what it forgot to receive or to write is told.

    Errors have Python's own traceback there, which says more than a line, and with it what was meant.
    """
    path = f"{run.__name__} of {os.path.basename(run.__code__.co_filename)}"

    @wraps(run)
    def wrapped(*args: Any, **options: Any) -> dict[str, Any]:
        machine = args[0]
        cores = hasattr(machine, "lead")
        if cores:
            machine.audit = Audit(path, run.__code__.co_filename)
        try:
            result = run(*args, **options)
        except Exception as error:
            hint = _without_with(error) or _wrong_argument(error, _traced(error)[1:]) or _meant(error).lstrip("; ")
            if hint:
                error.add_note(f"meshrt: {hint}")
            raise
        facts = _plain(path, result)
        if cores:
            _report_forgotten(machine, facts, run)
        _report_no_numbers(machine, facts)
        return facts

    return wrapped


def _report_forgotten(block: "Block", result: dict[str, Any], run: Callable[..., Any]) -> None:
    """When a program has ended, on all ranks: UsageError for what was not received; at rank 0 a warning for one that
    makes arrays of all cores (by `block.lead`, `x`, `y`) of which none was charged, and nothing counted.
    """
    audit = block.audit
    assert audit is not None
    lines = [line for line, _ in audit.open()]
    if lines:
        raise UsageError(
            f"{audit.path}, line {min(lines)}: nobody has received what is sent there, so its time is in no clock and"
            f" no core has waited for it ({len(lines)} transfers in all): give what `send` returns to `receive`"
        )
    ends = block.control.gather((END, bool(block.memory.peak or block.clock.cells.any())))
    elsewhere = [rank for rank, end in enumerate(ends or ()) if not isinstance(end, tuple) or end[:1] != (END,)]
    if elsewhere:  # what came is of another call for all ranks
        raise StallError(
            f"{audit.path}: rank {elsewhere[0]} calls all ranks where rank 0 is at the end of run: ranks have to make"
            " the same calls in the same order"
        )
    used = None if ends is None else [used for _, used in ends]
    names = getattr(getattr(run, "__code__", None), "co_names", ())
    if used is not None and not any(used) and block.payload and not {"lead", "x", "y"}.isdisjoint(names):
        block.console.clear()
        print(
            f"meshrt: warning: {audit.path} moved nothing, held nothing and took no time: what NumPy does with arrays"
            " of its own is not counted; block.tiles, block.memory.keep, block.matmul and block.elementwise are"
            " (docs/programs.md)",
            file=sys.stderr,
        )


def _report_no_numbers(machine: Any, result: dict[str, Any]) -> None:
    """At rank 0 a warning for NaN in the result, on the mesh with where it may be from, and for infinity: JSON has
    neither. All ranks of a mesh call it."""
    if not machine.payload:
        return
    lines, names = [], [name for name, value in result.items() if _has(isinf, value)]
    if names:
        strict = "JSON has no such number, so a strict reader will refuse the report"
        lines.append(f"meshrt: warning: the result's {', '.join(map(repr, names))} is infinite; {strict}")
    names, cause = [name for name, value in result.items() if _has(isnan, value)], ""
    if hasattr(machine, "lead") and machine.control.bcast(names):
        cause = _unwritten(machine)
    if names:
        lines.append(f"meshrt: warning: the result's {', '.join(map(repr, names))} is NaN{cause}")
    if lines and machine.control.rank == 0:
        machine.console.clear()
        print("\n".join(lines), file=sys.stderr)


def _unwritten(block: "Block") -> str:
    """Behind a warning for NaN: which core memory was never written. All ranks call it."""
    audit = block.audit
    assert audit is not None
    cores: dict[tuple[str, int], int] = {}
    for counts in block.control.gather(audit.unwritten()) or ():
        for key, count in counts.items():
            cores[key] = cores.get(key, 0) + count
    blanks = [
        f"{name!r} of {audit.path}, line {line}, at {count} of {block.mesh.width * block.mesh.height} cores"
        for (name, line), count in cores.items()
    ]
    if not blanks:
        return "; all core memory was written"
    return f"; core memory that was never written: {'; '.join(blanks)} (or got its NaN from such memory)"


def _has(is_so: Callable[[float], bool], value: Any) -> bool:
    """Is a number of a result, or one in it, so?"""
    if isinstance(value, float):
        return is_so(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_has(is_so, part) for part in parts)


def _is_hosts(error: Exception) -> bool:
    """Is it of the machine that emulates: its memory, its MPI library, an output that takes no more?"""
    output = isinstance(error, OSError) and error.filename is None
    return output or isinstance(error, MemoryError) or type(error).__module__.startswith("mpi4py")


def _told(path: str, error: Exception, by_shape: bool = False) -> MeshrtError:
    """The error with its line of the file, or of a module beside it, and how the program got there."""
    frames = [pair for pair in _traced(error) if "importlib" not in pair[0].filename]
    own_frames = [pair for pair in frames if _is_own(path, pair[0].filename)]
    if isinstance(error, MeshrtError):
        if own_frames and not isinstance(error, ProgramError):
            error.args = (f"{error} ({_location(path, own_frames[-1][0])})",)
        return error
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    if not own_frames:
        return ProgramError(f"{path}: {text}{_raised(error, frames)}")
    at, frame = own_frames[-1]
    location, inside = _location(path, at), at is frames[-1][0]
    if isinstance(error, ModuleNotFoundError):
        return UsageError(
            f"{location}: there is no module {error.name!r}: install it, or put {error.name}.py beside {path}"
        )
    if forgotten := _without_with(error):
        return UsageError(f"{location}: {forgotten}")
    if isinstance(error, ImportError) or (inside and isinstance(error, OWN_MISTAKES)):
        return UsageError(f"{location}: {text}{_meant(error)}")
    if wrong := _wrong_argument(error, frames[frames.index(own_frames[-1]) + 1 :]):
        return UsageError(f"{location}: {wrong}")
    if by_shape and inside and isinstance(error, (ValueError, IndexError)):
        return UsageError(f"{location}: {text}: by shape (--payload none) tiles are [1, 1, *tile], see block.lead")
    lines = [f"{location}: {text}", f"    {at.line}"]
    lines += [f"  with {arrays}" for arrays in [_arrays(at.line or "", frame)] if arrays]
    lines += [f"  called from {_location(path, summary)}: {summary.line}" for summary, _ in reversed(own_frames[:-1])]
    lines = list(dict.fromkeys(lines))  # a function that calls itself without end is one line
    return ProgramError("\n".join(lines) + ("" if inside else _raised(error, frames)))


def _without_with(error: Exception) -> str:
    """What is said of routes that were installed without a `with`. '' where they were not."""
    installs: Any = getattr(error, "obj", None)
    if type(installs).__name__ != "_GeneratorContextManager":
        return ""
    return f"what installs routes is for a `with`: with {installs.gen.__name__}(...) as way"


def _meant(error: Exception) -> str:
    """Behind a name that a block does not have: its mesh does, or other machines do."""
    mesh, name = getattr(getattr(error, "obj", None), "mesh", None), getattr(error, "name", None)
    if mesh is not None and name == "mine":
        return '; cores.mine is of other machines: say MACHINE = "neuron" in the file, or on="neuron"'
    meant = mesh is not None and isinstance(name, str) and hasattr(mesh, name)
    return f"; did you mean mesh.{name}?" if meant else ""


WANTED = {  # of arguments of functions of meshrt/mesh, by their names: the type, and what that is to a program
    **dict.fromkeys(("tiles", "a", "b", "out", "total", "array"), ("ndarray", "an array, [bh, bw, *tile]")),
    **dict.fromkeys(("positions", "lines", "cores"), ("ndarray", "an array of bools")),
    "channel": ("Channel", "what `installed` gives: with installed(...) as way"),
    **dict.fromkeys(("ring", "back"), ("Ring", "one of the rings of a `with`, such as rings.x")),
    "rings": ("Rings", "what rings along both axes are: with interleaved_rings(block) as rings"),
    "bar": ("Crossbar", "what `crossbar` gives: with crossbar(block) as bar"),
    "begun": ("Broadcast", "what `start` has returned"),
    "mesh": ("Mesh", "block.mesh"),
    "spread": ("Spread", "one of the two that `spreads` gives: with spreads(block) as (along_x, along_y)"),
    "transfers": ("Transfer", "one of meshrt.mesh.exchange.legs: Transfer(axis, owners, tiles)"),
    "way": ("Tree", "what a collective gives: with ktree(...) as tree"),
    **dict.fromkeys(("flight", "others"), ("Flight", "what `send` has returned")),
    "block": ("Block", "the block that `run` got"),
}


def _wrong_argument(error: Exception, frames: list[tuple[FrameSummary, FrameType]]) -> str:
    """Of an attribute that something does not have which the program gave to a function of meshrt/mesh: which argument
    it was, and what is wanted there. '' where it was none.
    """
    inner = [(Path(summary.filename).resolve(), frame) for summary, frame in frames]
    inner = [(path, frame) for path, frame in inner if PACKAGE in path.parents]
    if not isinstance(error, AttributeError) or not inner or PACKAGE / "mesh" not in inner[0][0].parents:
        return ""
    called, values = inner[0][1].f_code, inner[0][1].f_locals
    count = called.co_argcount + called.co_kwonlyargcount
    names = called.co_varnames[: count + bool(called.co_flags & CO_VARARGS)]
    for at, name in enumerate(names):
        given = values.get(name) if at >= count else (values.get(name),)
        kind, text = WANTED.get(name, ("", ""))
        if kind not in ("", type(error.obj).__name__) and any(error.obj is part for part in given or ()):
            return f"`{name}` of {called.co_name} is {_said(error.obj)}; it is {text}"
    return ""


def _said(value: Any) -> str:
    """A value in a message: arrays by their shapes, and what is of meshrt by its type."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} {list(value.shape)}"
    own = type(value).__module__.startswith("meshrt.")
    return f"a {type(value).__name__}" if own else in_short(value)


def _frames(traceback: Any) -> list[FrameType]:
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames


def _traced(error: Exception) -> list[tuple[FrameSummary, FrameType]]:
    """How the program got to an error, its own line first."""
    return list(zip(extract_tb(error.__traceback__), _frames(error.__traceback__), strict=True))


def _is_own(path: str, filename: str) -> bool:
    """Is it the program's file, or a module in the same folder?"""
    return os.path.dirname(os.path.realpath(filename)) == os.path.dirname(os.path.realpath(path))


def _shown(path: str, filename: str | None) -> str:
    """A file's name as the user gave that of the program."""
    same = filename is None or os.path.realpath(filename) == os.path.realpath(path)
    return path if same else os.path.join(os.path.dirname(path), os.path.basename(str(filename)))


def _location(path: str, at: FrameSummary) -> str:
    return f"{_shown(path, at.filename)}, line {at.lineno}"


def _arrays(line: str, frame: FrameType) -> str:
    """The shapes of the arrays that a line names."""
    variables = frame.f_globals | frame.f_locals
    arrays: dict[str, Any] = {name: variables.get(name) for name in re.findall(r"[A-Za-z_]\w*", line)}
    return ", ".join(
        f"{name} {array.dtype} {list(array.shape)}"
        for name, array in arrays.items()
        if hasattr(array, "dtype") and isinstance(getattr(array, "shape", None), tuple)  # NumPy itself has both names
    )


def _raised(error: Exception, frames: list[tuple[FrameSummary, FrameType]]) -> str:
    """Where an error came up that the file's own line did not raise itself."""
    if not frames:
        return ""
    last = frames[-1][0]
    path = Path(last.filename).resolve()
    inside = PACKAGE in path.parents
    # The latter is what sizes and kinds that do not fit come to.
    callers_fault = not inside or isinstance(error, (ValueError, TypeError))
    location = path.relative_to(PACKAGE.parent).as_posix() if inside else "/".join(path.parts[-2:])
    hint = "" if callers_fault else "; if the program's call is right, this is a bug of meshrt"
    return f"\n  raised in {location}, line {last.lineno}, in {last.name}{hint}"


def _plain(path: str, result: Any) -> dict[str, Any]:
    """The result of a user's program as JSON has it, with NumPy's numbers and arrays as plain ones. UsageError."""

    def plain(value: Any) -> Any:
        if hasattr(value, "dtype") and hasattr(value, "tolist"):  # also numbers of ml_dtypes
            return value.tolist()
        raise TypeError(f"a {type(value).__name__}")

    if result is None:  # nothing to tell; other ranks may still wait for this one, and that has to be found out
        return {}
    if not isinstance(result, dict):
        raise UsageError(f"{path}: run returns {result!r}; it has to be a dictionary, the result of the report")
    for name, value in result.items():
        try:
            json.dumps({name: value}, default=plain)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{path}: the result's {name!r} cannot be written as JSON: {error}") from error
    values: dict[str, Any] = json.loads(json.dumps(result, default=plain))
    return values
