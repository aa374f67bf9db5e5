"""A model on GPUs as it was asked for: its weights, its form by shape, its cache, and steps over them."""

from dataclasses import replace
from pathlib import Path

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.models.family import Family, evenly, first_unlike
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.models.quantize.folder import check_tensors
from meshrt.models.quantize.form import Quantized
from meshrt.models.quantize.head import checked_checkpoint
from meshrt.programs.gpu.cache.numbers import PagedCache, check_low_rank, make_cache
from meshrt.programs.gpu.coded import Hold
from meshrt.programs.gpu.experts.mixing import Mixing
from meshrt.programs.gpu.serving.request import Request, check_lengths
from meshrt.programs.gpu.shards import ShardedModel, place
from meshrt.programs.gpu.steps import CacheSteps
from meshrt.programs.storage import storage_type


def open_weights(gpus: Gpus, folder: Path, family: Family) -> Checkpoint | None:
    """The checkpoint, with every tensor that the model needs; None without payload. ModelError."""
    if not gpus.payload:
        return None
    checkpoint = checked_checkpoint(folder, family.config)
    for matrix in (matrix for layer in family.layers for matrix in layer.matrices()):
        if isinstance(matrix.form, Quantized):
            check_tensors(checkpoint, matrix.name, matrix.form, matrix.columns, matrix.rows)
    return checkpoint


def shaped(gpus: Gpus, family: Family, ratio: float | None, layers: int | None) -> Family:
    """The model as it was asked for. UsageError."""
    if ratio is not None:
        if gpus.payload:
            raise UsageError("--ratio is for shapes, with --payload none; `meshrt compress` makes a decomposed model")
        family = evenly(family, ratio)
    if layers is not None:
        if layers > len(family.layers):
            raise UsageError(f"--layers is {layers}; the model has {len(family.layers)}")
        family = replace(family, layers=family.layers[:layers])
    return family


def open_model(
    gpus: Gpus, family: Family, checkpoint: Checkpoint | None, scheme: str, kv: str, requests: list[Request], *,
    dtype: str | None = None, layers_run: int | None = None, block_size: int = 16, kv_blocks: int | None = None,
    wanted: bool = False, hold: Hold | None = None, mixing: Mixing | None = None,
    keeps: bool = False,
) -> CacheSteps:  # fmt: skip
    """The model on the GPUs, with a cache for the requests. UsageError, LimitError."""
    if gpus.payload and layers_run is not None:
        raise UsageError("--layers-run is for shapes: add --payload none")
    if gpus.pp * gpus.dp > 1:
        raise UsageError("--pp and --dp are for `llama --on gpu`: leave them away")
    check_lengths(family, requests)
    run = min(layers_run or len(family.layers), len(family.layers))
    unlike = first_unlike(family.layers, run)
    if unlike is not None:
        raise UsageError(
            f"--layers-run {run}: layer {unlike} has other ranks than layer {run - 1}, a window or experts, so it"
            " has to run"
        )
    kind = storage_type(dtype or family.dtype)
    longest = max(len(request.prompt) + request.limit for request in requests)
    needed = sum(-(-(len(request.prompt) + request.limit) // block_size) for request in requests)

    def opened(gpus: Gpus, checkpoint: Checkpoint | None) -> tuple[ShardedModel, PagedCache]:
        for gpu in gpus.mine:
            gpu.dtype = kind
        model = place(gpus, family, scheme, checkpoint, run, longest, hold or Hold(), mixing)
        if kv != "dense":
            check_low_rank(model, scheme, kv)
        return model, make_cache(gpus, model, kv, block_size, needed, kv_blocks, keeps)

    if gpus.payload:
        opened(replace(gpus, payload=False), None)  # what does not fit is refused before a weight is read
    return CacheSteps(gpus, *opened(gpus, checkpoint), wanted)
