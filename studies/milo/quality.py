"""What quantization costs the packaged mixtures: folders as `meshrt quantize` writes them, on held-out stories."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np

from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.perplexity import Loss, difference, losses, of_losses
from meshrt.models.quantize.choice import choose
from meshrt.models.quantize.model import QuantizedMatrix, quantize, read_model, statistics
from meshrt.models.quantize.policies import needs_text, parse
from meshrt.models.quantize.shapes import shapes_of
from meshrt.models.quantize.sizes import CodeScheme, sizes
from meshrt.models.reference import load_weights
from meshrt.models.stories import HELD_OUT_SEED
from meshrt.models.texts import story_sequences
from meshrt.models.tokenizer import FOR_TEXT, load_tokenizer

GROUP, CALIBRATION_STORIES, CALIBRATION_SEED = 64, 256, 0  # as `meshrt quantize` takes them without options


@dataclass(frozen=True)
class Recipe:
    """A packaged model quantized in one way; `fp16`: as it is."""

    model: str
    method: str
    ranks: str | None = None
    budget: int | None = None
    rounds: int = 20
    bits: int = 3
    compensator_bits: int = 3


@dataclass(frozen=True)
class RecipeOutcome:
    """What came of a recipe. `seconds` are the CPU's, for quantizing and writing."""

    policy: str
    bytes: int
    compensator_bytes: int
    bits_per_weight: float
    matrices: tuple[QuantizedMatrix, ...]
    losses: tuple[Loss, ...]  # of each story
    seconds: float

    @property
    def perplexity(self) -> float:
        return of_losses(self.losses)

    @property
    def error(self) -> float:
        """The mean of |W - W'| / |W| over the matrices."""
        return float(np.mean([matrix.weight_error for matrix in self.matrices])) if self.matrices else 0.0

    def more_than(self, other: "RecipeOutcome") -> tuple[float, float]:
        """Nats a token that it loses more, and the standard error, paired over stories (0 of a single one)."""
        nats, error = difference(other.losses, self.losses)
        return nats, error or 0.0


def measure(recipe: Recipe, stories: int) -> RecipeOutcome:
    """In this process."""
    folder = find_model(recipe.model)
    config, checkpoint = read_model(folder)
    tokenizer, shapes = load_tokenizer(folder, FOR_TEXT), shapes_of(config)
    test = story_sequences(config, tokenizer, HELD_OUT_SEED, stories)
    scheme = CodeScheme(recipe.method, recipe.bits, GROUP, False, recipe.compensator_bits if recipe.ranks else 16)
    if recipe.method == "fp16":
        nbytes, nats = (
            (shapes.weights + shapes.others) * shapes.item_bytes,
            losses(config, load_weights(folder, np.float32), test),
        )
        return RecipeOutcome("", nbytes, 0, 8.0 * shapes.item_bytes, (), tuple(nats), 0.0)
    gptq = recipe.method == "gptq"
    text = None
    if gptq or (recipe.ranks and needs_text(parse(recipe.ranks))):
        calibration = story_sequences(config, tokenizer, CALIBRATION_SEED, CALIBRATION_STORIES)
        text = [ids[:-1] for ids in calibration]
    stats = statistics(config, checkpoint, None if gptq else text)
    ranks: Mapping[str, int] = {}
    policy: dict[str, Any] = {"ranks": ""}
    if recipe.ranks:
        ranks, policy = choose(shapes, scheme, recipe.ranks, recipe.budget, stats)
    with TemporaryDirectory() as scratch:
        out, begin = Path(scratch) / "out", process_time()
        matrices = quantize(folder, out, scheme, ranks, recipe.rounds, stats, text if gptq else None)
        seconds = process_time() - begin
        nats = losses(read_config(out, quantized=True), load_weights(out, np.float32), test)
    size = sizes(shapes, scheme, ranks)
    return RecipeOutcome(
        policy["ranks"], size["bytes"], size["compensator_bytes"], size["bits_per_weight"], tuple(matrices),
        tuple(nats), seconds,
    )  # fmt: skip
