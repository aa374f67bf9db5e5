"""`meshrt tune`: the cores, head groups and trees that answer a prompt fastest, found by emulation (waferllm, 4.4).

Prefill and decode are searched one after the other, since they may run on different cores. What is tried:

    cores        square meshes from a ladder of sides, every fourth first, then nearer and nearer around the best
    regions      1; where the machine refuses, 2, 4, .. as many as there is room for, the layers being shared out
    head groups  those that leave least to a core; then, on the best cores, the numbers next to those; the same in both
    K            2 phases in the K-trees; then, on the best cores, 1 and 3

Of what fits, the pair of settings that takes the fewest cycles is run in one go, so that the move between the two is
measured, and beside it the best pair that stays on the same cores. The faster of the two is the answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from time import perf_counter
from typing import Any

from meshrt import __version__
from meshrt.errors import UsageError
from meshrt.mesh.mesh import Mesh
from meshrt.programs.mesh.chunks import best_groups
from meshrt.ranks.console import Console
from meshrt.reports.report import SCHEMA
from meshrt.studies.tune.pairs import Final, next_pairs, options_of, run_pairs
from meshrt.studies.tune.trials import (
    PhaseName,
    Question,
    Setting,
    Trial,
    Tried,
    capacity,
    measure,
    possible_groups,
)

PHASES = (2, 1, 3)  # K: the first with all cores, the others with the best ones
SMALL = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)  # sides for small models
STEP = 30  # between sides for large ones


@dataclass(frozen=True)
class Space:
    """What the search is restricted to; None: it is not. Regions are tried in the order given until a mesh fits."""

    sides: tuple[int, ...] | None = None
    decode_sides: tuple[int, ...] | None = None
    regions: tuple[int, ...] | None = None
    decode_regions: tuple[int, ...] | None = None


def tune(comm: Any, console: Console, question: Question, space: Space) -> dict[str, Any]:
    """Search, shared out to the ranks: the report, on all of them. Its `choice` is None where nothing fits. UsageError.

    All outside `host` is the same on any number of ranks.
    """
    start = perf_counter()
    check(question, space)
    tried: Tried = {}

    def run(settings: Sequence[Setting], label: str) -> None:
        measure(comm, console, question, tried, settings, label)

    parts: list[PhaseName] = ["prefill", "decode"] if question.contexts else ["prefill"]
    for part in parts:
        find_cores(question, space, tried, run, part)
        if best_of(tried, part) is None:
            break
    else:
        widen(question, space, tried, run)
    finals: list[Final] = []
    while not any(final.total < inf for final in finals):
        pairs = next_pairs(tried, [(final.prefill, final.decode) for final in finals], question)
        if not pairs:
            break
        finals += run_pairs(comm, console, question, tried, pairs)
    best = min((final for final in finals if final.total < inf), key=lambda final: final.total, default=None)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "model": question.model,
        "device": {key: value for key, value in asdict(question.device).items() if key != "sources"},
        "prompt_tokens": question.prompt_tokens,
        "new_tokens": question.new_tokens,
        "kv": question.kv,
        "dtype": question.dtype,
        "layers": question.config.layers,
        "layers_run": question.layers_run,
        "search": asdict(space),
        "choice": None if best is None else options_of(best),
        "cycles": None if best is None else {**best.cycles, "total": best.total},
        "seconds": None if best is None else best.total / question.device.clock_hz,
        "candidates": [as_json(question, trial) for trial in tried.values()],
        "pairs": [
            {
                "options": options_of(final),
                "cycles": final.cycles or None,
                "total": final.total if final.cycles else None,
                "memory_bytes": final.memory,
                "refused": final.refused,
                "chosen": final is best,
            }
            for final in finals
        ],
        "host": {"ranks": comm.size, "wall_seconds": perf_counter() - start},
    }


def check(question: Question, space: Space) -> None:
    """UsageError for a search that cannot be."""
    for name, number in (("--prompt-tokens", question.prompt_tokens), ("--new-tokens", question.new_tokens)):
        if number < 1:
            raise UsageError(f"{name} is {number}; it starts at 1")
    for option, given in (("--decode-sides", space.decode_sides), ("--decode-regions", space.decode_regions)):
        if given and not question.contexts:
            raise UsageError(f"{option} is for decode, and --new-tokens 1 has none: the first comes out of prefill")
    width, height = question.device.width, question.device.height
    for option, sides in (("--sides", space.sides), ("--decode-sides", space.decode_sides)):
        for side in sides or ():
            if side < 1 or side > min(width or side, height or side):
                raise UsageError(f"{option}: there is no {side} x {side} mesh on the {width} x {height} cores of"
                                 f" {question.device.name}")  # fmt: skip
    for option, part, counts in (
        ("--regions", "prefill", space.regions),
        ("--decode-regions", "decode", space.decode_regions),
    ):
        ladder = ladder_of(question, space, "prefill" if part == "prefill" else "decode")
        if counts and not any(1 <= count <= capacity(question, side) for count in counts for side in ladder):
            raise UsageError(f"{option}: none of {', '.join(map(str, counts))} regions fits"
                             f" {question.device.name} with sides of {', '.join(map(str, ladder))}")  # fmt: skip


# ------------------------------------------------------------------------------------------------------- the search


def ladder_of(question: Question, space: Space, part: PhaseName) -> list[int]:
    """The sides to search, ascending: those asked for, or up to half of the model's width, or the wafer's."""
    sides = space.sides if part == "prefill" else space.decode_sides
    if sides:
        return sorted(set(sides))
    widest = min(
        question.config.hidden_size // 2, question.device.width or 10**9, question.device.height or 10**9
    )  # fmt: skip
    steps = SMALL if widest < 8 * STEP else range(STEP, widest + 1, STEP)
    return [side for side in steps if side <= widest] or [1]


def find_cores(
    question: Question, space: Space, tried: Tried, run: Callable[[Sequence[Setting], str], None], part: PhaseName
) -> None:
    """Try sides of one part: all that were asked for, or a few and then nearer ones around the best."""
    ladder = ladder_of(question, space, part)
    sides = space.sides if part == "prefill" else space.decode_sides
    counts = space.regions if part == "prefill" else space.decode_regions
    cost: dict[int, float] = {}
    stride = 1 if sides or len(ladder) < 5 else 4
    next_sides = ladder[::-stride]
    while True:
        fresh = [side for side in dict.fromkeys(next_sides) if side not in cost]
        cost |= try_sides(question, tried, run, part, fresh, counts)
        if stride == 1:
            return
        stride //= 2
        best = min(cost, key=lambda side: cost[side])
        if cost[best] == inf:
            next_sides = ladder[::-stride]
        else:
            at = ladder.index(best)
            next_sides = [ladder[near] for near in (at - stride, at + stride) if 0 <= near < len(ladder)]


def try_sides(
    question: Question, tried: Tried, run: Callable[[Sequence[Setting], str], None], part: PhaseName,
    sides: Sequence[int], counts: Sequence[int] | None,
) -> dict[int, float]:  # fmt: skip
    """Cycles by side; a mesh that is refused is tried again with more regions."""
    cost = dict.fromkeys(sides, inf)
    regions_left = {side: regions_of(question, side, counts) for side in sides}
    while regions_left := {side: regions for side, regions in regions_left.items() if regions}:
        settings = []
        for side, regions in regions_left.items():
            groups = best_groups((Mesh(side, side),), question.config)
            settings.append(Setting(part, side, regions.pop(0), groups, PHASES[0]))
        run(settings, f"{part} on {', '.join(f'{setting.side}x{setting.side}' for setting in settings)}")
        for setting in settings:
            cost[setting.side] = tried[setting].cost
            if cost[setting.side] < inf:
                regions_left[setting.side] = []
    return cost


def regions_of(question: Question, side: int, counts: Sequence[int] | None) -> list[int]:
    """Numbers of regions to try with meshes of this side, in order."""
    limit = capacity(question, side)
    if counts:
        return [count for count in counts if 1 <= count <= limit]
    doubled = [2**level for level in range(limit.bit_length()) if 2**level < limit]
    return [*doubled, limit]


def widen(question: Question, space: Space, tried: Tried, run: Callable[[Sequence[Setting], str], None]) -> None:
    """On the cores that were best: other head groups, which both parts have in common, then other trees.

    Decode is tried on the cores of prefill as well, where nothing has to move to other cores, unless others are asked
    for.
    """
    best_prefill, best_decode = best_of(tried, "prefill"), best_of(tried, "decode")
    assert best_prefill is not None
    prefill = best_prefill.setting
    settings = [prefill]
    if best_decode is not None:
        settings.append(best_decode.setting)
        if prefill.side in (space.decode_sides or (prefill.side,)) and (
            prefill.regions in (space.decode_regions or (prefill.regions,))
        ):
            settings.append(replace(prefill, part="decode"))
    possible = {setting.side: possible_groups(question, setting.side) for setting in settings}
    at = possible[prefill.side].index(prefill.head_groups)
    near = {*possible[prefill.side][max(0, at - 1) : at + 2], *(setting.head_groups for setting in settings)}
    run([replace(setting, head_groups=groups) for groups in sorted(near) for setting in settings
         if groups in possible[setting.side]], "head groups")  # fmt: skip
    pairs = [setting for pair in next_pairs(tried, (), question) for setting in pair]
    run([replace(setting, phases=phases) for setting in pairs for phases in PHASES[1:]], "trees")


def best_of(tried: Tried, part: PhaseName) -> Trial | None:
    """The trial of a part with the fewest cycles; None where all were refused."""
    fit = [trial for trial in tried.values() if trial.setting.part == part and trial.cost < inf]
    return min(fit, key=lambda trial: trial.cost, default=None)


# ------------------------------------------------------------------------------------------------------- the report


def as_json(question: Question, trial: Trial) -> dict[str, Any]:
    """A candidate: what it is, its cycles by context and in all, or why it was refused."""
    return {
        **asdict(trial.setting),
        "cycles": trial.cycles,
        "tokens": [{"context": context, "cycles": cycles} for context, cycles in trial.tokens],
        "memory_bytes": trial.memory,
        "refused": trial.refused,
    }
