"""Which experts tokens take where there are no numbers to say so: drawn by how popular experts are, from a seed.

A draw is the same on every rank, in every run and whatever came before it: it goes by seed, layer, step and tokens.
"""

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from meshrt.errors import UsageError
from meshrt.models.errors import ModelError
from meshrt.models.folders.files import MAX_TEXT_BYTES, parse_object, read_text
from meshrt.options import FILE, AtLeast
from meshrt.records import dataclass

FORMS = "uniform, zipf:S, lognormal, or a JSON file of how often each expert was chosen"
RoutingText = Annotated[str | None, f"experts by shape: {FORMS}  [default: uniform]", FILE]
RoutingSeed = Annotated[int, "of the draws of --routing", AtLeast(0)]

Draw = NDArray[np.intp]  # [tokens, top], in order of the experts' numbers


@dataclass(frozen=True)
class Routing:
    """`frequency` [layers, experts]: how popular each is, in any unit. Layers are those with experts, from 0 on."""

    frequency: NDArray[np.float64]
    top: int
    seed: int

    def draw(self, layer: int, step: int, tokens: int) -> Draw:
        """The `top` experts of each token of a step, none twice: one after the other, in proportion to the frequencies
        of those that are left (Plackett and Luce; by Gumbel's trick, the largest of logarithm + noise)."""
        noise = np.random.default_rng([self.seed, layer, step]).gumbel(size=(tokens, self.frequency.shape[1]))
        with np.errstate(divide="ignore"):
            scores = np.log(self.frequency[layer]) + noise
        return np.sort(np.argpartition(-scores, self.top - 1, axis=1)[:, : self.top], axis=1)


def make_routing(text: str, layers: int, experts: int, top: int, seed: int) -> Routing:
    """What --routing says, for so many layers with experts. UsageError.

    zipf:S gives the expert of rank r the frequency r^-S, in an order of each layer's own; lognormal exp(N(0, 1)).
    """
    rng = np.random.default_rng([seed, layers, experts])
    if text == "uniform":
        frequency = np.ones((layers, experts))
    elif text == "lognormal":
        frequency = rng.lognormal(size=(layers, experts))
    elif text.startswith("zipf:"):
        by_rank = np.arange(1, experts + 1) ** -_slope(text)
        frequency = np.stack([rng.permutation(by_rank) for _ in range(layers)])
    else:
        frequency = read_frequency(text, layers, experts)
    if (least := int((frequency > 0).sum(axis=1).min())) < top:
        raise UsageError(f"--routing {text}: {least} experts of a layer are ever chosen, and a token takes {top}")
    return Routing(frequency, top, seed)


def imbalance(tokens: NDArray[Any]) -> dict[str, float] | None:
    """The largest over the mean, of each layer: mean of the layers, and the worst."""
    shares = [float(line.max() / line.mean()) for line in tokens if line.any()]
    return {"mean": float(np.mean(shares)), "worst": max(shares)} if shares else None


def read_frequency(file: str, layers: int, experts: int) -> NDArray[np.float64]:
    """The numbers [layers, experts] of a JSON file: `tokens`, a list for each layer or one for all; or a report of a
    model with experts (`meshrt run --json`), which has them. UsageError."""
    try:
        data: Any = parse_object(read_text(Path(file), MAX_TEXT_BYTES))
    except (ModelError, ValueError) as error:
        raise UsageError(f"--routing {file}: it is {FORMS}; as a file: {error}") from error
    for key in ("result", "experts"):
        data = data[key] if isinstance(data.get(key), dict) else data
    rows = data.get("tokens")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise UsageError(
            f"--routing {file} has no 'tokens', a list of lists: how often each expert of a layer is chosen"
        )
    if len(rows) != 1 and len(rows) < layers:
        raise UsageError(f"--routing {file} has {len(rows)} layers; the model has {layers} with experts")
    for row in rows:
        if len(row) != experts or not all(_is_frequency(value) for value in row):
            raise UsageError(f"--routing {file}: a layer has to be {experts} numbers, none below 0")
    frequency = np.array(rows[:layers], np.float64)
    return np.broadcast_to(frequency, (layers, experts)) if len(rows) == 1 else frequency


def _slope(text: str) -> float:
    try:
        slope = float(text.removeprefix("zipf:"))
    except ValueError:
        slope = math.nan
    if not 0 <= slope <= 10:
        raise UsageError(f"--routing {text}: S of zipf:S is a number from 0 to 10, such as zipf:1.2")
    return slope


def _is_frequency(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e18
