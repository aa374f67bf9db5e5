"""Control wavelets: up to eight commands for the routers on the way, each with a mark that keeps it from the core.

A command has three bits, the lower two of them what is done, the third the mark. The first lies in bits 22 to 24, the
second in 25 to 27, the third in 28, 29 and 0, the next follow from bit 1 on: so the published 25-point stencil and
allreduce of csl-examples write them. Bits 16 to 21 name a control task.
"""

from __future__ import annotations

from collections.abc import Sequence

NAMES = ("NOP", "SWITCH_ADV", "SWITCH_RST", "TEARDOWN")
COUNT = 8
SILENT = 4
BITS = [(22, 23, 24), (25, 26, 27), (28, 29, 0), *[(at, at + 1, at + 2) for at in range(1, 14, 3)]]
NO_TASK = 31


def first(raw: int) -> tuple[str, bool]:
    """What the next router does, and whether its core is passed by."""
    return NAMES[raw >> 22 & 3], bool(raw >> 24 & 1)


def _command(raw: int, at: int) -> int:
    return sum((raw >> bit & 1) << number for number, bit in enumerate(BITS[at]))


def encode(commands: Sequence[int], task: int = NO_TASK) -> int:
    """The wavelet of these commands; what is missing of eight is none, and no core is told."""
    raw = task << 16
    for bits, command in zip(BITS, [*commands, *[SILENT] * (COUNT - len(commands))], strict=True):
        for number, bit in enumerate(bits):
            raw |= (command >> number & 1) << bit
    return raw


def pop(raw: int) -> int:
    """The wavelet without its first command: each moves up, and the last stays as it is."""
    commands = [_command(raw, at) for at in range(COUNT)]
    return encode([*commands[1:], commands[-1]], raw >> 16 & 0x3F) | raw & 0xC0000000
