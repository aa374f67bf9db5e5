"""The loop: a prompt, then token after token, on whichever machine the engine is."""

from typing import Any

import numpy as np

from meshrt.machine import Machine
from meshrt.programs.generation.choice import Choice
from meshrt.programs.generation.engine import Engine, Scores
from meshrt.programs.generation.keep import Generation, Keep, restore, save
from meshrt.programs.generation.options import GenerationOptions
from meshrt.programs.generation.prompt import Prompt, Teller
from meshrt.ranks.console import Turns
from meshrt.ranks.control import Control
from meshrt.ranks.files import write_file


def generate(
    machine: Machine, engine: Engine, prompt: Prompt, choice: Choice, keep: Keep, logits: bool = False
) -> Generation:
    """New tokens after a prompt, printed as they come; `logits` keeps all of theirs as well.

    In a dialogue (the console's `turns`) what is said next is computed on top of all that is in the cache, token by
    token, and is among the new tokens.
    """
    teller = Teller(machine.console, prompt, machine.payload)
    generation = Generation([], [], choice.rng)
    if keep.state is None:
        if prompt.ids:
            _next(engine, engine.prefill(prompt.ids, logits), choice, generation, logits)
        else:
            engine.fill(prompt.context)
            generation.new.append(0)
            engine.took(0)
        teller.tell(generation.new)
    with engine.decoding():
        if keep.state is not None:
            restore(keep.state, machine, engine, prompt.vocabulary, generation)
        saved = 0 if keep.state is None else len(generation.new)
        turns, begin, computed = machine.console.turns, 0, len(prompt)
        while True:
            while not _over(choice, generation.new[begin:] if begin else generation.new, turns):
                if keep.is_due(len(generation.new)) and len(generation.new) > saved:
                    save(keep, machine.control, engine, generation)
                _next(engine, _step(engine, prompt, generation), choice, generation, logits)
                computed += 1
                teller.tell(generation.new)
                machine.console.progress("decode", len(generation.new), choice.limit)
            teller.end()
            more = None if turns is None else turns.next(generation.new[begin:], computed)
            if more is None:
                return generation
            for token in more:
                _step(engine, prompt, generation)
                generation.new.append(token)
                engine.took(token)
            begin, computed = len(generation.new), len(more)
            teller.skip(generation.new)


def _step(engine: Engine, prompt: Prompt, generation: Generation) -> Scores:
    """The newest token, which the cache does not have yet."""
    return engine.step(generation.new[-1], len(prompt) + len(generation.new) - 1)


def _over(choice: Choice, new: list[int], turns: Turns | None) -> bool:
    return bool(new) and (choice.is_over(new) or (turns is not None and len(new) >= turns.limit))


def _next(engine: Engine, scores: Scores, choice: Choice, generation: Generation, logits: bool) -> None:
    """The token that follows a pass; the last reference to its logits goes before the engine hears of it."""
    if logits:
        generation.rows.extend(scores.rows())
    generation.new.append(scores.draw(choice.draw) if choice.draws else scores.greedy())
    del scores
    engine.took(generation.new[-1])


def said(machine: Machine, prompt: Prompt, choice: Choice, new: list[int]) -> dict[str, Any]:
    """What a report says of a generation, on every machine. By shape tokens are 0, and there is no text."""
    return {
        "prompt_ids": list(prompt.ids),
        "token_ids": new,
        "text": prompt.decode(new) if machine.payload else None,
        "stopped": choice.stopped(new),
    }


def write_logits(control: Control, options: GenerationOptions, generation: Generation) -> None:
    """All logits to --logits, if that is asked for. UsageError."""
    if options.logits and control.rank == 0:
        rows = np.array(generation.rows, np.float32)
        write_file("--logits", options.logits, lambda stream: np.save(stream, rows))
