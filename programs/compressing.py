"""Models whose MLP is in two factors by shape: what a folder of `meshrt compress` would have, without its numbers."""

from dataclasses import replace
from typing import Annotated

from meshrt.errors import UsageError
from meshrt.models.compress.ranks import aligned_ranks
from meshrt.models.config import Config
from meshrt.options import AtLeast, Below
from meshrt.records import dataclass

MULTIPLE = 128  # NeuronMM's, of the ranks


@dataclass(frozen=True, kw_only=True)
class CompressingOptions:
    """Options of such a model."""

    ratio: Annotated[
        float | None, "as if the MLP were compressed by so much; --payload none", AtLeast(0), Below(1)
    ] = None  # fmt: skip
    block: Annotated[int | None, f"of the ranks of --ratio  [default: {MULTIPLE}]", AtLeast(1)] = None


def compressed_by_shape(config: Config, payload: bool, by: CompressingOptions) -> Config:
    """The model with each matrix of its MLPs as two factors, of the rank that --ratio leaves (NeuronMM, equation 5).

    UsageError, ModelError.
    """
    if by.ratio is None:
        if by.block is not None:
            raise UsageError(f"--block is {by.block}, of the ranks of --ratio: give that too, or leave it away")
        return config
    if payload:
        raise UsageError(f"--ratio {by.ratio} gives shapes only: add --payload none, or `meshrt compress` the model")
    if config.quantized:
        raise UsageError(f"--ratio {by.ratio} makes two factors of whole matrices, and this model's are in codes")
    return replace(config, factored=aligned_ranks(config, "mlp", by.ratio, MULTIPLE if by.block is None else by.block))
