"""Models whose MLP is in two factors by shape: what a folder of `meshrt compress` would have, without its numbers."""

from dataclasses import replace
from typing import Annotated

from meshrt.errors import UsageError
from meshrt.models.config import Config
from meshrt.models.ranks import aligned_ranks
from meshrt.options import AtLeast, Below

MULTIPLE = 128  # NeuronMM's, of the ranks
Ratio = Annotated[float | None, "as if the MLP were compressed by so much; --payload none", AtLeast(0), Below(1)]
Block = Annotated[int | None, f"of the ranks of --ratio  [default: {MULTIPLE}]", AtLeast(1)]


def compressed_by_shape(config: Config, payload: bool, ratio: float | None, block: int | None) -> Config:
    """The model with each matrix of its MLPs as two factors, of the rank that --ratio leaves (NeuronMM, equation 5).

    UsageError, ModelError.
    """
    if ratio is None:
        if block is not None:
            raise UsageError(f"--block is {block}, of the ranks of --ratio: give that too, or leave it away")
        return config
    if payload:
        raise UsageError(f"--ratio {ratio} gives shapes only: add --payload none, or `meshrt compress` the model")
    if config.quantized:
        raise UsageError(f"--ratio {ratio} makes two factors of whole matrices, and this model's are in codes")
    return replace(config, factored=aligned_ranks(config, "mlp", ratio, MULTIPLE if block is None else block))
