"""What the memories of a machine other than the mesh hold, without a run of the numbers: the program itself, by shape.

GPUs, NeuronCores and Arm cores allocate one thing after the other, on one rank as on many: with memories that are never
full, what each held at most is what it would hold.
"""

from collections.abc import Mapping
from typing import Any

from meshrt.errors import LimitError
from meshrt.machine import Held, find_machine
from meshrt.mesh.weigh import Weight
from meshrt.program import Program
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console

ENDLESS = 1 << 55  # bytes


def weigh(program: Program, arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> Weight:
    """The fullest memory of a run with these options, complete and checked, also if that is too much.

    LimitError where something other than the memory is too small, as a tile of SBUF; UsageError.
    """
    try:
        held, size, result = _held(program, arguments, settings)
        limit, refused = held.limit, False
    except LimitError:
        kind = find_machine(program.machine)
        held, size, result = _held(program, arguments, kind.with_memory(settings, ENDLESS))
        limit = kind.fullest(_opened(program, settings)).limit
        refused = True
    holders = dict(sorted(((name, n) for name, n in held.holders.items() if n), key=lambda holder: -holder[1]))
    return Weight(held.nbytes, limit, (held.index, 0), held.place, holders, (size, 1), result, refused)


def _opened(program: Program, settings: Mapping[str, Any]) -> Any:
    kind = find_machine(program.machine)
    return kind.open_machine(Alone(), Board.alone(), program.mesh, False, Console(), **settings)


def _held(
    program: Program, arguments: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[Held, int, Mapping[str, Any]]:
    """What was fullest at the end of the program, on how many devices, and what it returned. LimitError, UsageError."""
    machine = _opened(program, settings)
    try:
        result = program.run(machine, **arguments)
        return find_machine(program.machine).fullest(machine), machine.count, result
    finally:
        machine.close()
