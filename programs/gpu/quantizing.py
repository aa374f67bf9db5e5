"""What the options on codes ask for: a model quantized by shape, and how products with codes are computed."""

from dataclasses import replace
from typing import Any

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.models.config import Config
from meshrt.models.family import Family, family_of
from meshrt.models.quantize.choice import choose
from meshrt.models.quantize.form import Quantized, check_group
from meshrt.models.quantize.shapes import shapes_of
from meshrt.models.quantize.sizes import Scheme, bytes_of
from meshrt.programs.gpu.coded import Hold
from meshrt.programs.gpu.options import How


def quantized_by_shape(gpus: Gpus, family: Family, how: How) -> Family:
    """The model with all matrices of its layers in --bits, and compensators of --ranks. UsageError, ModelError."""
    of_bits = {
        "--group": how.group, "--symmetric": how.symmetric or None, "--ranks": how.ranks,
        "--compensator-bits": how.compensator_bits,
    }  # fmt: skip
    if how.bits is None:
        for name, value in of_bits.items():
            if value is not None:
                raise UsageError(f"{name} goes with --bits, which quantizes a model by shape")
        return family
    if gpus.payload:
        raise UsageError("--bits is for shapes, with --payload none; `meshrt quantize` makes a quantized model")
    if forms(family):
        raise UsageError("--bits: the model is quantized already; leave it away")
    if how.ratio is not None or family.config.ranks or not isinstance(family.config, Config):
        raise UsageError("--bits quantizes LLaMA and its like, whole matrices only: leave --ratio away, or --bits")
    if how.compensator_bits is not None and how.ranks is None:
        raise UsageError("--compensator-bits goes with --ranks, such as uniform-16")
    group, bits = how.group or 64, int(how.compensator_bits or 3)
    try:
        check_group(group)
    except ValueError as error:
        raise UsageError(f"--group: {str(error).removeprefix('has ')}") from error
    scheme = Scheme("milo", how.bits, group, how.symmetric, bits)
    shapes = shapes_of(family.config)
    ranks = choose(shapes, scheme, how.ranks, None, None)[0] if how.ranks is not None else {}
    forms_of = {one.name: scheme.form(ranks.get(one.name, 0)) for one in shapes.matrices}
    return family_of(replace(family.config, quantized=forms_of))


def hold_of(family: Family, how: How) -> Hold:
    """How the codes of this model are computed with. UsageError for options that would change nothing."""
    found = forms(family)
    for name, given in (
        ("--unfused", how.unfused), ("--compensators", how.compensators != "apart"),
        ("--compensator-memory", how.compensator_memory != "stored"),
    ):  # fmt: skip
        if given and not found:
            raise UsageError(f"{name} is about the codes of a quantized model, and this one has none")
        if given and name != "--unfused" and not any(form.rank for form in found):
            raise UsageError(f"{name}: the model's matrices have no compensators; leave it away")
    if how.unfused and how.compensators == "fused":
        raise UsageError("--compensators fused: with --unfused they are added to the matrix; leave one of the two away")
    if how.compensator_memory == "float16" and found[0].compensator_bits == 16:
        raise UsageError("--compensator-memory float16: in this model they are in float16 as stored; leave it away")
    return Hold("unfused" if how.unfused else how.compensators, how.compensator_memory == "float16")


def told(family: Family, hold: Hold) -> dict[str, Any]:
    """What the result says of a quantized model; nothing of another. Bytes are those of the whole layers as they are in
    a folder; what a GPU holds of them is in its memory, by name."""
    found = [one for layer in family.layers for one in layer.matrices() if isinstance(one.form, Quantized)]
    if not found:
        return {}
    form = found[0].form
    assert isinstance(form, Quantized)
    codes = compensators = half = 0
    for one in found:
        assert isinstance(one.form, Quantized)
        codes += bytes_of(one.form.codes(one.columns, one.rows))
        compensators += bytes_of(one.form.compensator(one.columns, one.rows))
        half += 2 * one.form.rank * (one.rows + one.columns)
    return {
        "quantized": {
            "bits": form.bits, "group": form.group, "symmetric": form.symmetric, "kernel": hold.way,
            "compensator_memory": "float16" if hold.half else "stored",
            "bytes": {"codes": codes, "compensators": compensators, "compensators_in_float16": half},
        }
    }  # fmt: skip


def forms(family: Family) -> list[Quantized]:
    """Those of all quantized matrices."""
    return [
        one.form for layer in family.layers for one in layer.matrices() if isinstance(one.form, Quantized)
    ]  # fmt: skip
