"""What the options on codes ask for: a model quantized by shape, and how products with codes are computed."""

from typing import Any

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.models.family import Family, family_of
from meshrt.models.quantize.form import Quantized, common_group
from meshrt.models.quantize.sizes import bytes_of
from meshrt.programs import quantizing
from meshrt.programs.gpu.coded import Hold
from meshrt.programs.gpu.options import How
from meshrt.programs.quantizing import CompensatedOptions


def quantized_by_shape(gpus: Gpus, family: Family, how: How, codes: CompensatedOptions) -> Family:
    """The model with all matrices of its layers in --bits, and compensators of --ranks. UsageError, ModelError."""
    if codes.bits is not None and how.ratio is not None:
        raise UsageError(
            "--bits quantizes whole matrices, and --ratio puts factors in their place: leave --ratio away, or --bits"
        )
    config = quantizing.quantized_by_shape(family.config, gpus.payload, codes)
    return family if config is family.config else family_of(config)


def hold_of(family: Family, how: How) -> Hold:
    """How the codes of this model are computed with. UsageError for options that would change nothing."""
    quantized = forms(family)
    for name, given in (
        ("--unfused", how.unfused), ("--compensators", how.compensators != "apart"),
        ("--compensator-memory", how.compensator_memory != "stored"),
    ):  # fmt: skip
        if given and not quantized:
            raise UsageError(f"{name} is about the codes of a quantized model, and this one has none")
        if given and name != "--unfused" and not any(form.rank for form in quantized):
            raise UsageError(f"{name}: the model's matrices have no compensators; leave it away")
    if how.unfused and how.compensators == "fused":
        raise UsageError("--compensators fused: with --unfused they are added to the matrix; leave one of the two away")
    if how.compensator_memory == "float16" and quantized[0].compensator_bits == 16:
        raise UsageError("--compensator-memory float16: in this model they are in float16 as stored; leave it away")
    return Hold("unfused" if how.unfused else how.compensators, how.compensator_memory == "float16")


def told(family: Family, hold: Hold) -> dict[str, Any]:
    """What the result says of a quantized model; nothing of another. Bytes are those of the whole layers as they are in
    a folder; what a GPU holds of them is in its memory, by name."""
    matrices = [matrix for layer in family.layers for matrix in layer.matrices() if isinstance(matrix.form, Quantized)]
    if not matrices:
        return {}
    form = matrices[0].form
    assert isinstance(form, Quantized)
    codes = compensators = half = 0
    for matrix in matrices:
        assert isinstance(matrix.form, Quantized)
        codes += bytes_of(matrix.form.codes(matrix.columns, matrix.rows))
        compensators += bytes_of(matrix.form.compensator(matrix.columns, matrix.rows))
        half += 2 * matrix.form.rank * (matrix.rows + matrix.columns)
    return {
        "quantized": {
            "bits": form.bits, "group": common_group(forms(family)), "symmetric": form.symmetric, "kernel": hold.way,
            "compensator_memory": "float16" if hold.half else "stored",
            "bytes": {"codes": codes, "compensators": compensators, "compensators_in_float16": half},
        }
    }  # fmt: skip


def forms(family: Family) -> list[Quantized]:
    """Those of all quantized matrices."""
    return [
        matrix.form for layer in family.layers for matrix in layer.matrices() if isinstance(matrix.form, Quantized)
    ]  # fmt: skip
