"""What a generation has come to, on disk: it goes on from there on any number of ranks as if it had never stopped.

Weights are not written down, since the model has them: they are read again, where decode has them.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from meshrt import __version__
from meshrt.errors import UsageError
from meshrt.mesh import state
from meshrt.mesh.block import Block
from meshrt.models.checkpoint import Checkpoint
from meshrt.models.config import Config
from meshrt.programs.mesh.cache import Cache
from meshrt.programs.mesh.regions import Region
from meshrt.ranks import snapshot
from meshrt.ranks.snapshot import Part, Snapshot

SAMPLE = 4096  # bytes of each tensor by which a model is known again
SHOWN = 40  # characters of an argument in a message


@dataclass(frozen=True)
class Generation:
    """What changes from token to token, the cores apart. `kept` are rows of logits, at rank 0 only."""

    new: list[int]
    kept: list[np.ndarray]
    spent: tuple[Any, Any]
    rng: np.random.Generator


def identity(
    block: Block, config: Config, source: Checkpoint | None, ids: Sequence[int], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """What has to be the same for a generation to go on as it began: facts as JSON keeps them, on all ranks."""
    told: dict[str, Any] = {
        "version of meshrt": __version__,
        "--mesh": [block.mesh.width, block.mesh.height],
        "--payload": "full" if block.payload else "none",
        **{f"device's {name}": value for name, value in asdict(block.device).items() if name != "sources"},
        "--defects": None if block.wafer is None else _digest(block.wafer.lengths.tobytes()),
        "model": block.control.bcast(fingerprint(config, source) if block.mesh.rank == 0 else None),
        "prompt": _digest(repr(tuple(ids)).encode()),
    }
    told |= {f"--{name.replace('_', '-')}": value for name, value in arguments.items()}
    kept: dict[str, Any] = json.loads(json.dumps(told))
    return kept


def fingerprint(config: Config, source: Checkpoint | None) -> str:
    """A digest of a model's sizes, and of the names, shapes and first numbers of its tensors."""
    found = hashlib.sha256(repr(config).encode())
    for name, tensor in sorted(source.tensors.items()) if source else ():
        found.update(repr((name, tensor.dtype, tensor.shape, tensor.nbytes)).encode())
        with tensor.file.open("rb") as file:
            file.seek(tensor.offset)
            found.update(file.read(min(SAMPLE, tensor.nbytes)))
    return found.hexdigest()


def open_folder(block: Block, folder: str, resume: bool, now: Mapping[str, Any]) -> Snapshot | None:
    """Make the folder, if it is not there, and read what a run is to go on from: None where it holds nothing yet.

    UsageError where no state can be kept there, the one there is damaged or began in another way, or is in the way of
    a run that does not go on.
    """
    snapshot.prepare(block.control, "--checkpoint", folder)
    if not snapshot.holds_state(block.control, folder):
        if resume:
            block.notes["resumed_at_token"] = 0
            block.console.text(f"(nothing to resume in {folder}: this run starts at the beginning)\n")
        return None
    if not resume:
        raise UsageError(
            f"--checkpoint {folder} holds a checkpoint already: go on from it with --resume, or name another folder"
        )
    found = snapshot.load(block.control, "--checkpoint", folder)
    with snapshot.trusted(found):
        then = dict(found.facts["identity"])
    for name in {**then, **now}:
        if then.get(name) != now.get(name):
            texts = [str(one.get(name)) for one in (then, now)]
            plain = name.startswith(("--", "device")) and name != "--defects" and max(map(len, texts)) <= SHOWN
            was = f"with {name} {texts[0]}, and this run has {texts[1]}" if plain else f"with another {name}"
            raise UsageError(
                f"--resume: what {folder} holds was begun {was}: give what it was begun with, or name another folder"
            )
    return found


def save(
    folder: str, identity: Mapping[str, Any], block: Block, regions: Sequence[Region], caches: Sequence[Cache],
    told: Generation,
) -> None:  # fmt: skip
    """Write down where a generation is, between two tokens. UsageError on all ranks where the disk does not take it.

    `block` is that of the run, `regions` are those that decode, and `caches` all that hold memory, also others'.
    """
    facts, parts = state.describe(_cores(block, regions))
    logits = np.array(told.kept, np.float32)[None, None]
    parts |= _tokens(regions) | ({"logits": Part(logits)} if told.kept else {})
    facts |= {
        "identity": dict(identity),
        "tokens": told.new,
        "logits": logits.shape,
        "spent": told.spent,
        "caches": [{"held": cache.held.tolist(), "moved": cache.moved} for cache in caches],
        "rng": told.rng.bit_generator.state,
    }
    snapshot.save(block.control, "--checkpoint", folder, len(told.new), facts, parts)


def hold(caches: Sequence[Cache], found: Snapshot) -> None:
    """Let caches that are empty have memory for what they held. LimitError."""
    with snapshot.trusted(found):
        for cache, was in zip(caches, found.facts["caches"], strict=True):
            cache.add(np.array(was["held"], np.int64))
            cache.moved = int(was["moved"])


def restore(found: Snapshot, block: Block, regions: Sequence[Region], vocabulary: int, told: Generation) -> None:
    """Let everything go on from there; `hold` has been at the caches, and decode's phase is running."""
    with snapshot.trusted(found):
        facts = found.facts
        state.restore(_cores(block, regions), found)
        parts = _tokens(regions)
        if facts["logits"][2] and block.mesh.rank == 0:
            logits = np.empty(facts["logits"], np.float32)
            parts["logits"] = Part(logits)
        found.fill(parts)
        if "logits" in parts:
            told.kept.extend(logits[0, 0])
        for cycles, was in zip(told.spent, facts["spent"], strict=True):
            if cycles is not None:
                cycles.extend(map(float, was))
        told.new.extend(int(token) for token in facts["tokens"])
        if not told.new or not 0 <= min(told.new) <= max(told.new) < vocabulary:
            raise ValueError("tokens")
        told.rng.bit_generator.state = facts["rng"]
    block.notes["resumed_at_token"] = len(told.new)


def _tokens(regions: Sequence[Region]) -> dict[str, Part]:
    """What the rows hold, if there are payloads, as bytes: npy files have no name for bfloat16."""
    parts = {}
    for at, cache in enumerate(region.cache for region in regions if region.block.payload):
        data = cache.data[:, :, : int(cache.held.max())]
        parts[f"cache {at}"] = Part(data.view(np.uint8), cache.block.mesh.y0, cache.block.mesh.x0)
    return parts


def _cores(block: Block, regions: Sequence[Region]) -> list[Block]:
    """All cores that decode goes on with, those that are at work between two tokens first."""
    found = [region.block for region in regions]
    found += [region.crossing.border for region in regions if region.crossing is not None]
    return found if any(one is block for one in found) else [*found, block]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
