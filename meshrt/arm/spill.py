"""What a micro-kernel with more registers than there are has to save to the stack and load again."""

from functools import lru_cache

from meshrt.arm.isa import OPERATIONS, Instruction
from meshrt.arm.kernel import MicroKernel

NEVER = 1 << 62


@lru_cache(256)
def spills(kernel: MicroKernel, steps: int, registers: int) -> tuple[int, int]:
    """Registers loaded from the stack, and saved to it, for a micro-tile.

    The register that is needed last makes room (Belady), as a compiler would choose, which knows the whole list. What
    is not needed again is not saved, and what has not changed since it was saved is not saved again.
    """
    lines = [*kernel.before, *kernel.body * steps, *kernel.after]
    uses = [_uses(line) for line in lines]
    coming: list[dict[str, int]] = [{} for _ in lines]  # of the registers of a line: where they are needed next
    later: dict[str, int] = {}
    for at in range(len(lines) - 1, -1, -1):
        reads, writes = uses[at]
        coming[at] = {name: later.get(name, NEVER) for name in (*reads, *writes)}
        later |= dict.fromkeys(writes, NEVER) | dict.fromkeys(reads, at)
    needed: dict[str, int] = {}  # of those in registers: where next
    changed: set[str] = set()
    saved: set[str] = set()
    loads = stores = 0
    for (reads, writes), following in zip(uses, coming, strict=True):
        for name in following:
            if name in needed:
                continue
            if len(needed) == registers:
                victim = max((other for other in needed if other not in following), key=lambda other: needed[other])
                if victim in changed and needed[victim] < NEVER:
                    stores += 1
                    saved.add(victim)
                    changed.discard(victim)
                del needed[victim]
            loads += name in reads and name in saved
            needed[name] = following[name]
        needed |= following
        changed |= set(writes)
    return loads, stores


def _uses(line: Instruction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The registers that a line reads, and those that it writes."""
    onto = line.op in OPERATIONS and OPERATIONS[line.op].onto
    return (*line.of, *(line.to if onto else ())), line.to
