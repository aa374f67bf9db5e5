"""Micro-kernels: lists of instructions, as a paper prints them, and how they run on all micro-tiles at once."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np

from meshrt.arm.isa import OPERATIONS, Array, Instruction, Opcode
from meshrt.records import dataclass

POISON = np.array([0xC0, 0x7F] * 8, np.uint8)  # of a fresh register: NaN in float32 and float16, large in int8
LOOP = ("subs", "bne")  # that close a loop: counted, not timed, as they are no SIMD instructions
LOADS = ("ld1", "ld1r")
OTHERS = {*LOADS, "st1", *LOOP}


@dataclass(frozen=True)
class KernelTally:
    """What a list of instructions comes to, once."""

    instructions: Mapping[str, int]
    loads: int  # registers
    stores: int
    operations: int

    @cached_property
    def simd(self) -> int:
        """Instructions of the SIMD pipes."""
        return sum(count for op, count in self.instructions.items() if op not in OTHERS)

    @cached_property
    def extensions(self) -> tuple[tuple[str, str], ...]:
        """The instructions that not every core has, and what they need."""
        pairs = ((op, OPERATIONS[op].needs) for op in self.instructions if op in OPERATIONS)
        return tuple((op, needs) for op, needs in pairs if needs is not None)


@dataclass(frozen=True, eq=False)
class MicroKernel:
    """What is done for a micro-tile: `before`, then `body` as often as there are steps, then `after`."""

    name: str
    before: tuple[Instruction, ...]
    body: tuple[Instruction, ...]
    after: tuple[Instruction, ...]

    @property
    def unit(self) -> str:
        """What it multiplies with, which its name begins with."""
        return self.name.split()[0]

    @cached_property
    def registers(self) -> tuple[str, ...]:
        """All that it names, in the order of their first use."""
        lines = (*self.before, *self.body, *self.after)
        return tuple(dict.fromkeys(name for line in lines for name in (*line.to, *line.of)))

    @cached_property
    def widest(self) -> int:
        """The most registers that one of its instructions names, which have to be there at once."""
        return max(len({*line.to, *line.of}) for line in (*self.before, *self.body, *self.after))

    @cached_property
    def carried(self) -> frozenset[str]:
        """Registers that a step of the loop leaves to the next: what it reads of them comes from before."""
        written: set[str] = set()
        carried = set()
        for line in self.body:
            onto = line.op in OPERATIONS and OPERATIONS[line.op].onto
            carried |= {name for name in (*line.of, *(line.to if onto else ())) if name not in written}
            written |= set(line.to)
        carried &= written
        for line in self.body:  # they are sums: all steps of an instruction are done before the next instruction
            for name in carried & {*line.of, *line.to}:
                reads = name in line.of or (line.op in OPERATIONS and OPERATIONS[line.op].onto)
                assert name in line.to and reads, f"{self.name}: {line} is no sum in {name}"
        return frozenset(carried)

    @cached_property
    def tallies(self) -> tuple[KernelTally, KernelTally, KernelTally]:
        """Of the three lists; the loop's own instructions are the body's."""
        return _tally(self.before, ()), _tally(self.body, LOOP if self.body else ()), _tally(self.after, ())

    def total(self, steps: int) -> KernelTally:
        """Of a micro-tile of so many steps."""
        return _total(self, steps)

    def __str__(self) -> str:
        """The listing."""
        loop = [f"{self.name}:", *(f"  {line}" for line in self.body), f"  subs, bne {self.name}"] if self.body else []
        return "\n".join([*map(str, self.before), *loop, *map(str, self.after)])


def _tally(lines: Sequence[Instruction], more: Sequence[str]) -> KernelTally:
    operations = [OPERATIONS[line.op] for line in lines if line.op in OPERATIONS]
    return KernelTally(
        Counter([*(line.op for line in lines), *more]),
        sum(len(line.to) for line in lines if line.op in LOADS),
        sum(len(line.of) for line in lines if line.op == "st1"),
        sum(opcode.operations for opcode in operations),
    )


@lru_cache(4096)
def _total(kernel: MicroKernel, steps: int) -> KernelTally:
    parts = [*zip(kernel.tallies, (1, steps, 1), strict=True)]
    instructions: Counter[str] = Counter()
    for tally, times in parts:
        instructions.update({op: count * times for op, count in tally.instructions.items()})
    return KernelTally(
        instructions,
        sum(tally.loads * times for tally, times in parts),
        sum(tally.stores * times for tally, times in parts),
        sum(tally.operations * times for tally, times in parts),
    )


def execute(kernel: MicroKernel, grid: Sequence[int], steps: int, streams: Mapping[str, Array]) -> None:
    """Run a kernel for all micro-tiles of a grid. What it stores is in the streams then.

    A stream is what a pointer walks over, uint8 [*grid, steps, bytes of a step]; before and after the loop `steps` is
    1. Along an axis of the grid on which nothing depends it has length 1. `after` is run in the order of the grid's
    last axis: there, sums may go to the same place.
    """
    held: dict[str, Array] = {}
    fresh = POISON.reshape(*(1 for _ in grid), 1, 16)
    _run(kernel.before, held, streams, fresh)
    _run(kernel.body, held, streams, fresh, kernel.carried)
    if not kernel.after:
        return
    last = len(grid) - 1
    for at in range(grid[-1]):
        registers = {name: _part(array, last, at) for name, array in held.items()}
        _run(kernel.after, registers, {name: _part(array, last, at) for name, array in streams.items()}, fresh)


def _part(array: Array, axis: int, at: int) -> Array:
    """An axis of length 1, at a place of it."""
    return array if array.shape[axis] == 1 else array[(slice(None),) * axis + (slice(at, at + 1),)]


def _run(
    lines: Sequence[Instruction], held: dict[str, Array], streams: Mapping[str, Array], fresh: Array,
    carried: Collection[str] = (),
) -> None:  # fmt: skip
    begins: Counter[tuple[str, str]] = Counter()
    for line in lines:
        if line.stream is not None:
            memory, pointer = streams[line.stream], (line.op, line.stream)
            for name in line.to or line.of:
                size = 8 if line.op == "ld1r" else 16
                at = slice(begins[pointer], begins[pointer] + size)
                if line.op in LOADS:
                    held[name] = np.concatenate(16 // size * (memory[..., at],), -1)
                else:
                    memory[..., at] = held.get(name, fresh)
                begins[pointer] += size
            continue
        opcode = OPERATIONS[line.op]
        operands = [held.get(name, fresh) for name in ((*line.to, *line.of) if opcode.onto else line.of)]
        if opcode.onto and line.to[0] not in carried:  # each step for itself: as if steps were tiles
            result = opcode.run(*(operand[..., None, :] for operand in operands), line.at)[..., 0, :]
        elif line.to[0] in carried and not opcode.onto:
            result = _carry(opcode, line, operands)
        else:
            result = opcode.run(*operands, line.at)
        held[line.to[0]] = result.reshape(*fresh.shape[:-1], 16) if result.ndim == 1 else result


def _carry(opcode: Opcode, line: Instruction, operands: Sequence[Array]) -> Array:
    """A target that is an operand as well, from step to step."""
    own = line.of.index(line.to[0])
    others = [operand for at, operand in enumerate(operands) if at != own]
    total = operands[own]
    for step in range(max((operand.shape[-2] for operand in others), default=1)):
        given = [operand[..., min(step, operand.shape[-2] - 1), None, :] for operand in others]
        total = opcode.run(*given[:own], total, *given[own:], line.at)
    return total
