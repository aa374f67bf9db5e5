"""Options that the programs on GPUs share: their kinds, and what `--help` says of them."""

from typing import Annotated, Literal

from meshrt.options import FILE, Above, AtLeast, Below
from meshrt.programs.generation.options import LayersRun
from meshrt.programs.routing import RoutingSeed, RoutingText
from meshrt.records import dataclass

Model = Annotated[
    str, "a packaged model's name, or a Hugging Face folder: LLaMA, Qwen2, OPT, mixtures of experts", FILE
]


@dataclass(frozen=True, kw_only=True)
class GpuOptions:
    """Options of all of them: how a model lies on GPUs, and is computed."""

    scheme: Annotated[
        Literal["dense", "base", "deinfer", "overlapped"],
        "how matrices are cut and summed; overlapped: deinfer, with collectives beside kernels",
    ] = "deinfer"
    kv: Annotated[
        Literal["dense", "lowrank", "fused"],
        "what the cache holds: keys and values, or their latents, rebuilt in three kernels or in one",
    ] = "dense"
    ratio: Annotated[
        float | None, "--payload none: decompose all matrices to 1 - RATIO of their shorter side", AtLeast(0), Below(1)
    ] = None  # fmt: skip
    unfused: Annotated[bool, "quantized: write each matrix in the model's dtype and read it again, as PyTorch"] = False
    compensators: Annotated[Literal["apart", "fused"], "kernels of their own, or in that of the codes"] = "apart"
    compensator_memory: Annotated[
        Literal["stored", "float16"], "what they are on the GPU: as stored, or float16"
    ] = "stored"  # fmt: skip
    experts: Annotated[
        Literal["tensor", "replicated", "alltoall"], "each cut over the GPUs; whole on one of them; tokens sent to them"
    ] = "tensor"  # fmt: skip
    place: Annotated[
        Literal["contiguous", "frequency"], "which GPU has which: in order, or tokens spread by --routing"
    ] = "contiguous"  # fmt: skip
    capacity: Annotated[
        float | None, "tokens of an expert, of the mean; more are dropped, fewer filled up  [default: all that come]",
        Above(0),
    ] = None  # fmt: skip
    routing: RoutingText = None
    routing_seed: RoutingSeed = 0
    block_size: Annotated[int, "tokens in a block of the cache", AtLeast(1)] = 16
    kv_blocks: Annotated[int | None, "blocks of the cache  [default: what is needed, if it fits]", AtLeast(1)] = None
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        "of all that is counted; computed in float32  [default: the model's]",
    ] = None
    layers_run: LayersRun = None


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Options of what runs together."""

    max_batch: Annotated[int, "requests that run together", AtLeast(1)] = 256
    max_prefill_tokens: Annotated[int, "prompt tokens that are computed together", AtLeast(1)] = 8192
