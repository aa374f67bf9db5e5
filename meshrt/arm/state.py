"""What a system on a chip has come to, clock, counters, caches, memory, as facts of a snapshot; and back.

A run that goes on has placed its weights again: what that changed is set back to what was. The phase that was running
then has to be running now: it takes over where it began.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshrt.arm.cache import CacheKey, CacheSpan, Lru, bytes_of
from meshrt.arm.soc import ArmPhase, Soc, sums
from meshrt.ranks.snapshot import Snapshot


def settings(soc: Soc) -> dict[str, Any]:
    """What of the machine has to be the same for a run to go on, by the options that say so."""
    return {"--cores": soc.count, "--spill": soc.spill}


def describe(soc: Soc) -> dict[str, Any]:
    """The facts, whole at rank 0 only. All ranks call it together."""
    cores = [
        [core.instructions, core.counts, core.registers, _pieces(core.caches.l1.held), _pieces(core.caches.l2.held)]
        for core in soc.mine
    ]
    phases = {name: [phase.cores, phase.begun[0]] for name, phase in soc.phases.items()}
    shares = soc.control.gather((cores, phases))
    if shares is None:
        return {}
    memory = soc.memory
    return {
        "cores": [core for of_rank, _ in shares for core in of_rank],
        "phases": {
            name: [phase.tokens, *(_total(parts[name][at] for _, parts in shares) for at in (0, 1)), phase.system,
                   phase.begun[1]]
            for name, phase in soc.phases.items()
        },
        "system": soc.system,
        "flash_free": soc.flash_free,
        "slc": [_pieces(soc.slc.lru.held), _pieces(soc.slc.changed)],
        "memory": [memory.sizes, memory.numbers, memory.used, memory.peak, memory.made],
    }  # fmt: skip


def restore(soc: Soc, snapshot: Snapshot) -> None:
    """Let these cores go on from where those of `describe` were, on any number of ranks."""
    facts, first = snapshot.facts, soc.control.rank == 0
    for core in soc.mine:
        instructions, counts, registers, l1, l2 = facts["cores"][core.index]
        core.instructions, core.counts, core.registers = _counts(instructions), _counts(counts), int(registers)
        _refill(core.caches.l1, l1)
        _refill(core.caches.l2, l2)
    for name, (tokens, cores, begun, system, system_begun) in facts["phases"].items():
        phase = soc.phases.setdefault(str(name), ArmPhase())
        phase.tokens = None if tokens is None else int(tokens)
        phase.cores = _counts(cores if first else {})
        phase.system = sums(system)
        phase.begun = (_counts(begun if first else {}), sums(system_begun))
    soc.phases = {str(name): soc.phases[name] for name in facts["phases"]}
    soc.system, soc.flash_free = sums(facts["system"]), float(facts["flash_free"])
    held, changed = facts["slc"]
    _refill(soc.slc.lru, held)
    soc.slc.changed = _spans(changed)
    sizes, numbers, used, peak, made = facts["memory"]
    soc.memory.sizes, soc.memory.numbers = dict(_counts(sizes)), dict(_counts(numbers))
    soc.memory.used, soc.memory.peak, soc.memory.made = int(used), int(peak), int(made)


def _total(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _pieces(held: Mapping[CacheKey, Sequence[CacheSpan]]) -> list[list[int]]:
    """Each piece as its key and the ends of its spans."""
    return [[*key, *(end for span in spans for end in span)] for key, spans in held.items()]


def _spans(held: Iterable[Sequence[Any]]) -> dict[CacheKey, tuple[CacheSpan, ...]]:
    pieces = (tuple(map(int, piece)) for piece in held)
    return {(buffer, tile, at): (*zip(ends[::2], ends[1::2], strict=True),) for buffer, tile, at, *ends in pieces}


def _refill(cache: Lru, held: Iterable[Sequence[Any]]) -> None:
    cache.held = OrderedDict(_spans(held))
    cache.used = sum(map(bytes_of, cache.held.values()))


def _counts(counts: Mapping[str, Any]) -> Counter[str]:
    return Counter({str(name): int(count) for name, count in counts.items()})
