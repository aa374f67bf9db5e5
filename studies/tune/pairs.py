"""Prefill and decode of a search in one go: which pairs of settings are worth it, and what they take together."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from meshrt.ranks.console import Console
from meshrt.studies.sweep import sweep
from meshrt.studies.tune.trials import Question, Setting, Tried, llama_job, phase_cycles


@dataclass(frozen=True)
class Final:
    """A pair of settings that was run in one go: cycles by phase, the decode of all tokens among them."""

    prefill: Setting
    decode: Setting
    cycles: dict[str, float]
    memory: int | None = None
    refused: str | None = None

    @property
    def total(self) -> float:
        """Cycles; infinitely many where the machine refused."""
        return sum(self.cycles.values()) if self.cycles else inf


def next_pairs(
    tried: Tried, done: Sequence[tuple[Setting, Setting]], question: Question
) -> list[tuple[Setting, Setting]]:
    """The fastest pair that has not been run in one go, and the fastest of those that stay on the same cores."""
    fit = [trial for trial in tried.values() if trial.cost < inf]
    prefills = [trial for trial in fit if trial.setting.part == "prefill"]
    pairs = {}
    for prefill in prefills:
        if not question.contexts:
            pairs[prefill.setting, prefill.setting] = prefill.cost
        for decode in fit:
            if decode.setting.part == "decode" and prefill.setting.head_groups == decode.setting.head_groups:
                pairs[prefill.setting, decode.setting] = prefill.cost + decode.cost
    remaining = sorted((pair for pair in pairs if pair not in done), key=lambda pair: pairs[pair])
    return list(dict.fromkeys([*remaining[:1], *[pair for pair in remaining if stays(*pair)][:1]]))


def stays(prefill: Setting, decode: Setting) -> bool:
    return (prefill.side, prefill.regions) == (decode.side, decode.regions)


def run_pairs(
    comm: Any, console: Console, question: Question, tried: Tried, pairs: Sequence[tuple[Setting, Setting]]
) -> list[Final]:
    """Prefill, move and a decoded token in one run; the decode of all tokens is that of decode's own trial."""
    jobs = []
    for prefill, decode in pairs:
        options = options_of(Final(prefill, decode, {}))
        del options["mesh"]
        jobs.append(
            llama_job(
                question, prefill.side, prompt_tokens=question.prompt_tokens,
                max_new_tokens=min(2, question.new_tokens), **options,
            )
        )  # fmt: skip
    finals = []
    for (prefill, decode), outcome in zip(pairs, sweep(comm, jobs, console, "in one go"), strict=True):
        if outcome.report is None:
            finals.append(Final(prefill, decode, {}, refused=outcome.refused))
            continue
        cycles = phase_cycles(outcome.report)
        if question.contexts:
            cycles["decode"] = tried[decode].cost
        finals.append(Final(prefill, decode, cycles, outcome.report["measured"]["memory_bytes"]["max"]))
    return finals


def options_of(final: Final) -> dict[str, Any]:
    """A pair as options of `run`."""
    prefill, decode = final.prefill, final.decode
    moves = not stays(prefill, decode)
    return {
        "mesh": f"{prefill.side}x{prefill.side}",
        "regions": prefill.regions,
        "decode_mesh": f"{decode.side}x{decode.side}" if moves else None,
        "decode_regions": decode.regions if moves else None,
        "head_groups": prefill.head_groups,
        "phases": prefill.phases,
        "decode_phases": decode.phases,
    }
