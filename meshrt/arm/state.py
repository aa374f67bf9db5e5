"""What a system on a chip has come to, clock, counters, caches, memory, as facts of a snapshot; and back.

A run that goes on has placed its weights again: what that changed is set back to what was. The phase that was running
then has to be running now: it takes over where it began.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from meshrt.arm.cache import Lru
from meshrt.arm.soc import ArmPhase, Soc, sums
from meshrt.ranks.snapshot import Snapshot


def settings(soc: Soc) -> dict[str, Any]:
    """What of the machine has to be the same for a run to go on, by the options that say so."""
    return {"--cores": soc.count, "--spill": soc.spill}


def describe(soc: Soc) -> dict[str, Any]:
    """The facts, whole at rank 0 only. All ranks call it together."""
    cores = [
        [core.instructions, core.counts, core.registers, _pieces(core.caches.l1), _pieces(core.caches.l2)]
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
        "slc": [_pieces(soc.slc.lru), sorted(soc.slc.changed)],
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
    soc.slc.changed = {_key(key) for key in changed}
    sizes, numbers, used, peak, made = facts["memory"]
    soc.memory.sizes, soc.memory.numbers = dict(_counts(sizes)), dict(_counts(numbers))
    soc.memory.used, soc.memory.peak, soc.memory.made = int(used), int(peak), int(made)


def _total(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _pieces(cache: Lru) -> list[list[int]]:
    return [[*key, nbytes] for key, nbytes in cache.held.items()]


def _refill(cache: Lru, held: Iterable[Any]) -> None:
    cache.held.clear()
    for *key, nbytes in held:
        cache.held[_key(key)] = int(nbytes)
    cache.used = sum(cache.held.values())


def _key(key: Any) -> tuple[int, int, int]:
    buffer, tile, at = map(int, key)
    return buffer, tile, at


def _counts(counts: Mapping[str, Any]) -> Counter[str]:
    return Counter({str(name): int(count) for name, count in counts.items()})
