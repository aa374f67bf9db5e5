"""What a run says of a quantized model on the mesh, and what it refuses."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Literal

from meshrt.errors import UsageError
from meshrt.models.config import Config
from meshrt.models.eightbits import check_sums
from meshrt.models.family import family_of
from meshrt.models.matrix import Matrix
from meshrt.models.quantize.form import Activations, Quantized, common_group
from meshrt.programs.mesh.codes.packed import Packed
from meshrt.programs.mesh.codes.tileform import HEADER, OF_GROUPS
from meshrt.programs.mesh.options import MeshOptions
from meshrt.programs.mesh.regions import Region
from meshrt.programs.mesh.weights import MeshLayer, MeshMlp


def check_quantized(config: Config, how: MeshOptions) -> None:
    """UsageError for what cannot be of a quantized model, or only of one."""
    if how.compensators == "apart" and not any(form.rank for form in config.quantized.values()):
        raise UsageError("--compensators apart: the model's matrices have no compensators; leave it away")
    if not config.quantized:
        return
    if how.system != "waferllm":
        raise UsageError(
            f"--system {how.system} moves whole numbers only: run a quantized model with waferllm's products"
        )
    if how.compensators == "apart" and how.experts == "regions":
        raise UsageError(
            "--compensators apart: experts in regions have one sum for each product; use --experts split, or fused"
        )


def with_activations(config: Config, activations: Activations | Literal["none"] | None) -> Config:
    """The model with matrices that say what they multiply, numbers or activations in 8 bits. UsageError, ModelError."""
    if not config.quantized:
        if activations is not None:
            raise UsageError(f"--activations {activations} is of a quantized model, and this is none: leave it away")
        return config
    forms = config.quantized.values()
    wanted = next(iter(forms)).activations if activations is None else None if activations == "none" else activations
    if config.moe is not None and wanted is not None:
        if activations is not None:
            raise UsageError(
                f"--activations {activations}: experts multiply rebuilt weights only; take none, or leave it away"
            )
        wanted = None
    if wanted is not None and any(form.rank for form in forms):
        raise UsageError(f"--activations {wanted}: products of whole numbers have no compensators; take none")
    for name, form in config.quantized.items() if wanted is not None else ():
        check_sums(config.matrices()[name].rows, form.bits)
    return replace(
        config, quantized={name: replace(form, activations=wanted) for name, form in config.quantized.items()}
    )


def told(config: Config, how: MeshOptions, regions: Sequence[Region]) -> dict[str, Any]:
    """What the result says of a quantized model; nothing of another.

    `core_bytes` is what every core of the region that holds most has of the layers' matrices, by what it is, as it was
    charged; `area_bytes` what it would be if the folder's bytes of these layers were shared out evenly. One line, which
    is printed, has both.
    """
    if not config.quantized:
        return {}
    form = next(iter(config.quantized.values()))
    fullest = max(regions, key=lambda region: sum(core_bytes(region).values()))
    layers = family_of(config).layers[fullest.layers.start : fullest.layers.stop]
    stored = sum(stored_bytes(matrix) for layer in layers for matrix in layer.matrices())
    cores = fullest.block.mesh.width * fullest.block.mesh.height
    held, area = core_bytes(fullest), -(-stored // cores)
    return {
        "layers_in_codes": f"{sum(held.values()):,} bytes a core, {area:,} by area",
        "quantized": {
            "bits": form.bits, "group": common_group(config.quantized.values()), "symmetric": form.symmetric,
            "compensators": how.compensators, "activations": form.activations or "none",
            "core_bytes": dict(held), "area_bytes": area,
        }
    }  # fmt: skip


def stored_bytes(matrix: Matrix) -> int:
    """Of a matrix in a folder."""
    from meshrt.models.quantize.sizes import bytes_of

    assert isinstance(matrix.form, Quantized)
    return bytes_of(matrix.form.tensors(matrix.name, matrix.columns, matrix.rows))


def core_bytes(region: Region) -> Counter[str]:
    """Of all tiles of codes at a core."""
    nbytes = Counter({"codes": 0, "scales": 0, "compensators": 0, "headers": 0})
    for packed in (packed for layer in region.weights.layers for packed in packed_of(layer)):
        tiles = prod(packed.data.shape[2:4])
        nbytes["headers"] += tiles * HEADER
        for form in packed.forms:
            for name, shape in form.arrays().items():
                nbytes["scales" if name in OF_GROUPS else "compensators"] += tiles * 2 * prod(shape)
            for letter, *_, size in form.slices():
                nbytes["codes" if letter == "w" else "compensators"] += tiles * size
    return nbytes


def packed_of(layer: MeshLayer) -> Iterator[Packed]:
    mlp = layer.mlp
    mlps = [mlp] if isinstance(mlp, MeshMlp) else [*mlp.rounds, *([] if mlp.shared is None else [mlp.shared])]
    for linear in (layer.qkv, layer.out, *(linear for mlp in mlps for linear in (mlp.up, mlp.down))):
        assert isinstance(linear.first, Packed)
        yield linear.first
