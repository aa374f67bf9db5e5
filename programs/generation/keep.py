"""What a generation has come to, on disk: it goes on from there on any number of ranks as if it had never stopped.

Weights are not written down, since the model has them: they are read again. What the machine has to say of itself, it
says through its engine.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from meshrt import __version__
from meshrt.errors import UsageError
from meshrt.machine import Machine
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.programs.generation.engine import Engine
from meshrt.programs.generation.options import EVERY
from meshrt.programs.generation.prompt import Prompt
from meshrt.ranks import saving, snapshot
from meshrt.ranks.control import Control
from meshrt.ranks.snapshot import Snapshot, SnapshotPart
from meshrt.records import dataclass

SAMPLE = 4096  # bytes of each tensor by which a model is known again
SHOWN = 40  # characters of an argument in a message
# Arguments that may be others where a generation goes on; model and prompt may have other names, and are compared.
MAY_CHANGE = {"model", "prompt", "prompts", "prompt_ids", "prompt_tokens", "logits", "checkpoint", "every", "resume"}


@dataclass(frozen=True, eq=False)
class Generation:
    """What changes from token to token, the machine apart. `rows` of logits are at rank 0 only."""

    new: list[int]
    rows: list[np.ndarray]
    rng: "np.random.Generator | None"  # None: no token is drawn


@dataclass(frozen=True, eq=False)
class Keep:
    """The folder that a state is kept in (None: nowhere), how often, whose it is, and the `state` that was there."""

    folder: str | None = None
    every: int = EVERY
    identity: Mapping[str, Any] | None = None
    state: Snapshot | None = None

    def is_due(self, tokens: int) -> bool:
        """With the prompt done, and then every so many new tokens."""
        return self.folder is not None and (tokens == 1 or tokens % self.every == 0)


def open_keep(
    machine: Machine, settings: Mapping[str, Any], config: object, source: Checkpoint | None, prompt: Prompt,
    arguments: Mapping[str, Any], grows: bool = False,
) -> Keep:  # fmt: skip
    """What --checkpoint, --every and --resume ask for; the folder is made, if it is not there.

    For a generation to go on, the machine's `settings` by their options, the model (`config` and its tensors), the
    prompt and the program's `arguments` have to be the same. `grows`: all but --max-new-tokens, where the machine lays
    nothing out for tokens that are yet to come: a run that goes on to more ends as one that asked for them at once.
    UsageError where no state can be kept, the one there is damaged or began in another way, or is in the way of a run
    that does not go on.
    """
    folder, every, resume = arguments.get("checkpoint"), arguments.get("every"), bool(arguments.get("resume"))
    if folder is None:
        return Keep()
    model = fingerprint(machine.control, config, source)
    may_change = MAY_CHANGE | {"max_new_tokens"} if grows else MAY_CHANGE
    this_run = identity(machine, settings, model, prompt, arguments, may_change)
    state = open_folder(machine, folder, resume, this_run)
    if state is not None and grows:
        check_limit(state, arguments["max_new_tokens"])
    return Keep(folder, every or EVERY, this_run, state)


def check_limit(state: Snapshot, limit: int) -> None:
    """UsageError for a state that has all the tokens that are asked for, and maybe more."""
    with snapshot.trusted(state):
        tokens = len(state.facts["tokens"])
    if tokens >= limit:
        raise UsageError(
            f"--resume: what {state.folder} holds has {tokens} new tokens already, and --max-new-tokens is {limit}: ask"
            " for more, or name another folder"
        )


def identity(
    machine: Machine, settings: Mapping[str, Any], model: str, prompt: Prompt, arguments: Mapping[str, Any],
    may_change: Collection[str],
) -> dict[str, Any]:  # fmt: skip
    """What has to be the same for a generation to go on as it began: facts as JSON keeps them."""
    from hashlib import sha256  # runs that keep no state start sooner without

    facts: dict[str, Any] = {
        "version of meshrt": __version__,
        "--payload": "full" if machine.payload else "none",
        **{f"device's {name}": value for name, value in asdict(machine.device).items() if name != "sources"},
        **settings,
        "model": model,
        "prompt": sha256(repr((prompt.ids, prompt.context)).encode()).hexdigest(),
    }
    facts |= {f"--{name.replace('_', '-')}": value for name, value in arguments.items() if name not in may_change}
    facts["--logits"] = arguments["logits"] is not None
    as_json: dict[str, Any] = json.loads(json.dumps(facts))
    return as_json


def fingerprint(control: Control, config: object, source: Checkpoint | None) -> str:
    """A digest of a model's sizes, and of the names, shapes and first numbers of its tensors. All ranks call it."""
    if control.rank:
        return str(control.bcast(None))
    from hashlib import sha256

    digest = sha256(repr(config).encode())
    for name, tensor in sorted(source.tensors.items()) if source else ():
        digest.update(repr((name, tensor.dtype, tensor.shape, tensor.nbytes)).encode())
        with tensor.file.open("rb") as file:
            file.seek(tensor.offset)
            digest.update(file.read(min(SAMPLE, tensor.nbytes)))
    return str(control.bcast(digest.hexdigest()))


def open_folder(machine: Machine, folder: str, resume: bool, this_run: Mapping[str, Any]) -> Snapshot | None:
    """What a run is to go on from: None where the folder, which is made if it is not there, holds nothing yet."""
    control = machine.control
    saving.prepare(control, "--checkpoint", folder)
    if not snapshot.holds_state(control, folder):
        if resume:
            machine.notes["resumed_at_token"] = 0
            machine.console.note(f"(nothing to resume in {folder}: this run starts at the beginning)")
        return None
    if not resume:
        raise UsageError(
            f"--checkpoint {folder} holds a checkpoint already: go on from it with --resume, or name another folder"
        )
    saved = snapshot.load(control, "--checkpoint", folder)
    with snapshot.trusted(saved):
        saved_run = dict(saved.facts["identity"])
    for name in {**saved_run, **this_run}:
        if saved_run.get(name) != this_run.get(name):
            texts = [str(facts.get(name)) for facts in (saved_run, this_run)]
            plain = name.startswith(("--", "device")) and name != "--defects" and max(map(len, texts)) <= SHOWN
            was = f"with {name} {texts[0]}, and this run has {texts[1]}" if plain else f"with another {name}"
            raise UsageError(
                f"--resume: what {folder} holds was begun {was}: give what it was begun with, or name another folder"
            )
    return saved


def save(keep: Keep, control: Control, engine: Engine, generation: Generation) -> None:
    """Write down where a generation is, between two tokens. UsageError on all ranks where the disk does not take it."""
    assert keep.folder is not None
    facts, parts = engine.describe()
    logits = np.array(generation.rows, np.float32)[None, None]
    parts |= {"logits": SnapshotPart(logits)} if generation.rows else {}
    facts |= {
        "identity": keep.identity,
        "tokens": generation.new,
        "logits": logits.shape,
    }
    facts |= {} if generation.rng is None else {"rng": generation.rng.bit_generator.state}
    saving.save(control, "--checkpoint", keep.folder, len(generation.new), facts, parts)


def restore(saved: Snapshot, machine: Machine, engine: Engine, vocabulary: int, generation: Generation) -> None:
    """Let a generation go on from there; decode's phase is running."""
    with snapshot.trusted(saved):
        facts = saved.facts
        generation.new.extend(int(token) for token in facts["tokens"])
        if not generation.new or not 0 <= min(generation.new) <= max(generation.new) < vocabulary:
            raise ValueError("tokens")
        engine.restore(saved, generation.new)
        if facts["logits"][2] and machine.control.rank == 0:
            logits = np.empty(facts["logits"], np.float32)
            saved.fill({"logits": SnapshotPart(logits)})
            generation.rows.extend(logits[0, 0])
        if generation.rng is not None:
            generation.rng.bit_generator.state = facts["rng"]
    machine.notes["resumed_at_token"] = len(generation.new)
