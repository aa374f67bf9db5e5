"""What a study runs: a program with options that may depend on the side N of the mesh.

gemm:algorithm=cannon        cannon        gemm:m={4*N},k=64        llama-tiny        my_program.py:size={8*N}
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from meshrt.errors import UsageError
from meshrt.models.catalogue import packaged
from meshrt.options import Option
from meshrt.program import Program, load_program
from meshrt.whole import LARGEST, whole

SendReach = Literal["next", "line"]

SHORT = {
    "allgather": "gemm:algorithm=allgather",
    "summa": "gemm:algorithm=summa",
    "cannon": "gemm:algorithm=cannon",
    "meshgemm": "gemm:algorithm=meshgemm",
    "pipeline": "gemv:allreduce=pipeline",
    "ring": "gemv:allreduce=ring",
    "ktree": "gemv:allreduce=ktree",
}


@dataclass(frozen=True)
class Workload:
    """How a packaged program's work grows with the mesh so that a core's tile stays the same."""

    options: Mapping[str, str]
    tile: str = ""
    steps: str = "1"
    reach: SendReach = "next"


# gemv has 8 tile numbers of y at a core, so that a ring's N chunks of them need no padding up to N = 64.
WORKLOADS = {
    "gemm": Workload({"m": "{tile*N}", "k": "{tile*N}", "n": "{tile*N}"}, "{tile} x {tile} tiles", steps="N"),
    "gemv": Workload({"k": "{tile*N}", "n": "{8*tile*N}"}, "{tile} x {8*tile} tiles of B", reach="line"),
    "shift": Workload({"tile": "{tile}"}, "{tile} x {tile} tiles", steps="N"),
}


@dataclass(frozen=True)
class Subject:
    """One program of a study. Its critical path is divided by `steps`, an expression.

    `reach` says what a step has to bridge: the next core on the line, or the whole line, as an allreduce does, which
    takes N - 1 hops at the least.
    """

    name: str
    program: Program
    source: str  # what `load_program` takes
    options: Mapping[str, str]
    steps: str
    reach: SendReach

    @property
    def kind(self) -> str:
        """What programs of one table have in common."""
        return self.program.name

    def arguments(self, n: int, tile: int) -> dict[str, Any]:
        """The options on an N x N mesh. UsageError."""
        options = {option.name: option for option in self.program.options}
        return {name: value_of(options[name], fill(text, n, tile)) for name, text in self.options.items()}


@dataclass(frozen=True)
class Layout:
    """A program in CSL: its parameters and what is launched, in which {N} stands for numbers that grow."""

    name: str
    path: Path
    parameters: str
    launches: tuple[str, ...]
    arch: str
    steps: str
    reach: SendReach
    kind: str = "CSL"

    @property
    def options(self) -> Mapping[str, str]:
        return {"params": self.parameters, "launch": " ".join(self.launches), "arch": self.arch}


def parse(text: str, extra: Sequence[str] = (), steps: str | None = None, reach: SendReach | None = None) -> Subject:
    """'NAME[:option=value,...]' or 'FILE.py[:option=value,...]'; `extra` are more of 'option=value'. UsageError.

    A packaged model's name is llama with that model.
    """
    name, _, options_text = text.partition(":") if ".py:" not in text else _split_file(text)
    short, _, implied = SHORT.get(name, name).partition(":")
    if short in packaged():
        short, implied = "llama", f"model={short}"
    program = load_program(short)
    if program.machine != "mesh":
        raise UsageError(f"{program.name} is for {program.machine}: PLMR is of programs for a mesh of cores")
    work = WORKLOADS.get(short, Workload({}))
    options = dict(work.options)
    for pair in [*filter(None, (*implied.split(","), *_commas(options_text))), *extra]:
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise UsageError(f"{pair!r} in {text} is not option=value")
        if key not in {option.name for option in program.options}:
            available = ", ".join(option.name for option in program.options) or "none"
            raise UsageError(f"{program.name} has no option {key!r}; its options: {available}")
        options[key] = value
    subject = Subject(text, program, short, options, steps or work.steps, reach or work.reach)
    subject.arguments(8, 8)  # tell what is wrong before anything runs
    evaluate(subject.steps, 8, 8)
    return subject


def _split_file(text: str) -> tuple[str, str, str]:
    path, _, options_text = text.partition(".py:")
    return f"{path}.py", ":", options_text


def _commas(text: str) -> list[str]:
    """Split at commas that begin another option: a value may hold commas of its own."""
    return re.split(r",(?=[\w-]+=)", text) if text else []


def value_of(option: Option, text: str) -> Any:
    """An option's value from a text. UsageError."""
    if option.choices and text not in option.choices:
        raise UsageError(f"{option.name}={text}: choose from {', '.join(option.choices)}")
    if text in option.words:
        return text
    if option.kind is bool:
        truths = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if text.lower() not in truths:
            raise UsageError(f"{option.name}={text}: true or false")
        return truths[text.lower()]
    try:
        return whole(text) if option.kind is int else option.kind(text)
    except ValueError:
        hint = ": arithmetic goes in braces, {8*N}" if "N" in text else ""
        raise UsageError(f"{option.name}={text} is not {option.kind.__name__}{hint}") from None


# --------------------------------------------------------------------------------------------------- expressions

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg,
}  # fmt: skip


def fill(text: str, n: int, tile: int) -> str:
    """'{8*N}x{N}' -> '64x8' for N = 8. UsageError."""
    return re.sub(r"\{([^{}]*)\}", lambda match: str(evaluate(match[1], n, tile)), text)


def evaluate(text: str, n: int, tile: int) -> Any:
    """Arithmetic on numbers, N (the side of the mesh) and tile. UsageError."""

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Expression():
                return value(node.body)
            case ast.Constant(value=int() | float() as number) if abs(number) <= LARGEST:
                return number
            case ast.Name(id="N" | "tile"):
                return n if node.id == "N" else tile
            case ast.BinOp() if type(node.op) in OPERATORS:
                result = OPERATORS[type(node.op)](value(node.left), value(node.right))
                if not abs(result) <= LARGEST:
                    raise ValueError(text)
                return result
            case ast.UnaryOp() if type(node.op) in OPERATORS:
                return OPERATORS[type(node.op)](value(node.operand))
        raise ValueError(text)

    try:
        return value(ast.parse(text.strip(), mode="eval"))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        raise UsageError(
            f"{text!r} is no arithmetic on N and tile, such as 8*N or N//2, with numbers of at most {LARGEST}"
        ) from None
