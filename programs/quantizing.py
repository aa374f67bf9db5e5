"""Models that are quantized by shape: what a folder of `meshrt quantize` would have, without its numbers."""

from dataclasses import replace
from typing import Annotated, Literal

from meshrt.errors import UsageError
from meshrt.models.config import Config
from meshrt.models.quantize.form import GroupSize as Grouping
from meshrt.options import AtLeast, AtMost
from meshrt.records import dataclass


@dataclass(frozen=True, kw_only=True)
class QuantizingOptions:
    """Options of such a model."""

    bits: Annotated[
        int | None, "--payload none: all matrices of the layers in so many bits a weight", AtLeast(2), AtMost(8)
    ] = None  # fmt: skip
    group: Annotated[
        int | Literal["row"] | None, "of --bits: weights that share a scale, or row: all of a row  [default: 64]"
    ] = None  # fmt: skip
    symmetric: Annotated[bool, "of --bits: no zeros are stored"] = False


@dataclass(frozen=True, kw_only=True)
class CompensatedOptions(QuantizingOptions):
    """The same with compensators."""

    ranks: Annotated[str | None, "of --bits: compensators, as dense-512+kurtosis-16 (`meshrt quantize`)"] = None
    compensator_bits: Annotated[Literal["3", "8", "16"] | None, "of --ranks  [default: 3]"] = None


def quantized_by_shape(config: Config, payload: bool, codes: QuantizingOptions) -> Config:
    """The model with all matrices of its layers in --bits, and compensators of --ranks. UsageError, ModelError."""
    bits, group, symmetric = codes.bits, codes.group, codes.symmetric
    ranks, compensator_bits = (
        (codes.ranks, codes.compensator_bits) if isinstance(codes, CompensatedOptions) else (None, None)
    )
    of_bits = {
        "--group": group, "--symmetric": symmetric or None, "--ranks": ranks, "--compensator-bits": compensator_bits,
    }  # fmt: skip
    if bits is None:
        for name, value in of_bits.items():
            if value is not None:
                raise UsageError(f"{name} goes with --bits, which quantizes a model by shape")
        return config
    if payload:
        raise UsageError("--bits is for shapes, with --payload none; `meshrt quantize` makes a quantized model")
    if config.quantized:
        raise UsageError("--bits: the model is quantized already; leave it away")
    if config.factored:
        raise UsageError("--bits quantizes whole matrices, and this model has some in two factors: leave it away")
    if compensator_bits is not None and ranks is None:
        raise UsageError("--compensator-bits goes with --ranks, such as uniform-16")
    from meshrt.models.quantize.choice import choose  # most runs need none of it, and start sooner without
    from meshrt.models.quantize.form import check_group
    from meshrt.models.quantize.shapes import shapes_of
    from meshrt.models.quantize.sizes import CodeScheme

    size: Grouping = 64 if group is None else group
    try:
        if size != "row":
            check_group(size)
    except ValueError as error:
        raise UsageError(f"--group: {str(error).removeprefix('has ')}") from error
    scheme = CodeScheme("milo", bits, size, symmetric, int(compensator_bits or 3))
    shapes = shapes_of(config)
    chosen = choose(shapes, scheme, ranks, None, None)[0] if ranks is not None else {}
    forms = {matrix.name: scheme.form(chosen.get(matrix.name, 0), matrix.columns) for matrix in shapes.matrices}
    return replace(config, quantized=forms)
