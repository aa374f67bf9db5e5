"""Options that the programs on GPUs share: their kinds, and what `--help` says of them."""

from dataclasses import dataclass
from typing import Annotated, Literal

from meshrt.program import AtLeast

Model = Annotated[str, "a packaged model's name, or a Hugging Face folder: LLaMA, Qwen2, OPT"]
Scheme = Annotated[Literal["dense", "base", "deinfer"], "how matrices are cut and summed"]
Kv = Annotated[Literal["dense", "lowrank"], "what the cache holds: keys and values, or their latents"]
Ratio = Annotated[float | None, "--payload none: decompose all matrices to 1 - RATIO of their shorter side"]
BlockSize = Annotated[int, "tokens in a block of the cache", AtLeast(1)]
KvBlocks = Annotated[int | None, "blocks of the cache  [default: what is needed, if it fits]", AtLeast(1)]
MaxBatch = Annotated[int, "requests that run together", AtLeast(1)]
MaxPrefillTokens = Annotated[int, "prompt tokens that are computed together", AtLeast(1)]
Dtype = Annotated[
    Literal["float32", "float16", "bfloat16"] | None,
    "of all that is counted; computed in float32  [default: the model's]",
]


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
