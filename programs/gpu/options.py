"""Options that the programs on GPUs share: their kinds, and what `--help` says of them."""

from typing import Annotated, Literal

from meshrt.options import Above, AtLeast, Below
from meshrt.records import dataclass

Model = Annotated[str, "a packaged model's name, or a Hugging Face folder: LLaMA, Qwen2, OPT, mixtures of experts"]
Scheme = Annotated[
    Literal["dense", "base", "deinfer", "overlapped"],
    "how matrices are cut and summed; overlapped: deinfer, with collectives beside kernels",
]
Kv = Annotated[
    Literal["dense", "lowrank", "fused"],
    "what the cache holds: keys and values, or their latents, rebuilt in three kernels or in one",
]
Ratio = Annotated[
    float | None, "--payload none: decompose all matrices to 1 - RATIO of their shorter side", AtLeast(0), Below(1)
]  # fmt: skip
BlockSize = Annotated[int, "tokens in a block of the cache", AtLeast(1)]
KvBlocks = Annotated[int | None, "blocks of the cache  [default: what is needed, if it fits]", AtLeast(1)]
MaxBatch = Annotated[int, "requests that run together", AtLeast(1)]
MaxPrefillTokens = Annotated[int, "prompt tokens that are computed together", AtLeast(1)]
Dtype = Annotated[
    Literal["float32", "float16", "bfloat16"] | None,
    "of all that is counted; computed in float32  [default: the model's]",
]
Unfused = Annotated[bool, "quantized: write each matrix in the model's dtype and read it again, as PyTorch"]
Compensators = Annotated[Literal["apart", "fused"], "kernels of their own, or in that of the codes"]
CompensatorMemory = Annotated[Literal["stored", "float16"], "what they are on the GPU: as stored, or float16"]
Experts = Annotated[
    Literal["tensor", "replicated", "alltoall"], "each cut over the GPUs; whole on one of them; tokens sent to them"
]  # fmt: skip
Place = Annotated[Literal["contiguous", "frequency"], "which GPU has which: in order, or tokens spread by --routing"]
Capacity = Annotated[
    float | None, "tokens of an expert, of the mean; more are dropped, fewer filled up  [default: all that come]",
    Above(0),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class How:
    """The values of those of them that say how one prompt is computed, by their names."""

    scheme: str
    kv: str
    ratio: float | None
    block_size: int
    kv_blocks: int | None
    dtype: str | None
    layers_run: int | None
    bits: int | None
    group: int | Literal["row"] | None
    symmetric: bool
    ranks: str | None
    compensator_bits: str | None
    unfused: bool
    compensators: Literal["apart", "fused"]
    compensator_memory: Literal["stored", "float16"]
    experts: str
    place: str
    capacity: float | None
    routing: str | None
    routing_seed: int
