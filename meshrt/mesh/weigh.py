"""What a program's cores hold, without running it: the program itself, by shape, with nothing moved and no clock.

Every array that a run would give out is asked for and given back in the same order by the same code, so what is charged
here is what a run charges. Only what moves packets (`fabric.send`) and what makes clocks go on (`Still`) is left out.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from meshrt.errors import LimitError
from meshrt.mesh.block import Block
from meshrt.mesh.devicefile import find_device
from meshrt.mesh.machine import open_machine
from meshrt.program import Program
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.records import dataclass
from meshrt.reports.parts import Runs


@dataclass(frozen=True)
class Weight:
    """The fullest core (x, y) of a run, of the mesh or of the `site` that it is at, and what it held then, in bytes."""

    nbytes: int
    limit: int | None  # of the device
    core: tuple[int, int]
    site: str
    holders: Mapping[str, int]  # most first
    mesh: tuple[int, int]
    result: Mapping[str, Any]  # what the program returned
    refused: bool = False  # though it is no more than the limit: a part was to be kept free

    @property
    def fits(self) -> bool:
        return not self.refused and (self.limit is None or self.nbytes <= self.limit)


def weigh(program: Program, arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> Weight:
    """The most that a core would hold in a run with these options, complete and checked, also if that is too much.

    LimitError where route entries are too few, UsageError.
    """
    device = find_device(settings.get("device", "wse2"), core_memory=settings.get("core_memory"))
    own: dict[str, Any] = {**settings, "device": device}
    try:  # some programs fill what memory there is
        block, result = _held(program, arguments, own)
    except LimitError:
        own |= {"device": replace(device, core_memory=None), "core_memory": None}
        block, result = _held(program, arguments, own)
    if isinstance(result, Runs):  # each on a machine of its own: the one that takes most
        each = [weigh(program, {**arguments, **change}, settings) for change in result.changes]
        return max(each, key=lambda weight: weight.nbytes)
    return _fullest(block, device.core_memory, result)


def _held(
    program: Program, arguments: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[Block, Mapping[str, Any] | Runs]:
    """The cores at the end of the program, and what it returned. LimitError, UsageError."""
    block = open_machine(Alone(), Board.alone(), program.mesh, False, Console(), timed=False, **settings)
    result = program.run(block, **arguments)
    block.finish()
    return block, result


def _fullest(block: Block, limit: int | None, result: Mapping[str, Any]) -> Weight:
    peaks = [
        (site, peak)
        for segment in block.ledger.segments
        for site, stretches in segment.counters.peaks.items()
        for peak in stretches
    ]
    site, peak = max(peaks, key=lambda entry: int(entry[1].most.max()))
    y, x = (int(at) for at in np.unravel_index(np.argmax(peak.most), peak.most.shape))
    name = site.rsplit(" ", 3)[0]  # Cores.site_key
    mesh = block.mesh.width, block.mesh.height
    return Weight(int(peak.most[y, x]), limit, (x, y), name, peak.names((y, x)), mesh, result)
