"""A system on a chip as a machine: what `meshrt.machine` asks of every one."""

from typing import Annotated, Any

from meshrt.arm.device import ARM_PRESETS, ArmDevice, find_arm_device
from meshrt.arm.report import gather, rows, title
from meshrt.arm.roofline import ceilings
from meshrt.arm.soc import Soc
from meshrt.program import AtLeast, Choices, Shown
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.ranks.control import Control

__all__ = ["SHARED", "ceilings", "gather", "open_machine", "rows", "title"]

SHARED = {"size": "cores", "memory": "dram"}


def open_machine(
    comm: Any, board: Board, default: tuple[int, int], payload: bool, console: Console,
    *,
    cores: Annotated[int | None, "The first so many, shared by the ranks.  [default: device's]", AtLeast(1)] = None,
    device: Annotated[str | ArmDevice, "The machine.", Choices(tuple(ARM_PRESETS))] = "n2x8",
    dram: Annotated[int | None, "Of all cores.  [default: device's]", AtLeast(1), Shown("BYTES")] = None,
    registers: Annotated[int | None, "Of a core, of 128 bits.  [default: device's]", AtLeast(1)] = None,
    spill: Annotated[bool, "Kernels may ask for more registers, which go to the stack."] = False,
) -> Soc:  # fmt: skip
    """This rank's cores. UsageError."""
    numbers = find_arm_device(device, dram_bytes=dram, registers=registers)
    count = len(numbers.cores) if cores is None else cores
    return Soc(numbers, count, Control(comm, board, "control"), payload, spill, console)
