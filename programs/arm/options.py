"""Options that `llama` has on Arm cores alone."""

from typing import Annotated, Literal

from meshrt.options import AtLeast, Listed
from meshrt.programs.generation.options import LayersRun
from meshrt.programs.routing import RoutingSeed, RoutingText
from meshrt.records import dataclass


@dataclass(frozen=True, kw_only=True)
class CodeOptions:
    """What weights and activations are stored as."""

    bits: Annotated[Literal["2", "3", "4", "5", "6", "7", "8"] | None, "of a weight  [default: the folder's, or 4]"] = (
        None
    )
    group: Annotated[
        int | Literal["row"] | None,
        "weights of a row that share a scale and zero; row, or 0: all  [default: the folder's, or 64]",
        AtLeast(0),
    ] = None
    symmetric: Annotated[bool, "weights without zeros: half of the codes is 0"] = False
    head_bits: Annotated[Literal["4", "8"], "of a weight of the head"] = "8"
    activations: Annotated[
        Literal["row", "block"] | None, "what shares a scale, a row or a group of it  [default: the folder's, or row]"
    ] = None


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """What keys and values are stored as."""

    attention: Annotated[Literal["fused", "concat"], "the cache is attention's own, or copied by every pass"] = "fused"
    kv_chunk: Annotated[
        str, "tokens that a fused cache grows by: a number, prompt, or max: all there will be", Listed()
    ] = "64"
    kv: Annotated[
        Literal["float32", "float16", "int8", "e4m3"], "storage of K and V; products are float16, of float32 float32"
    ] = "float16"


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """What cores do, and which layers."""

    split: Annotated[Literal["equal", "rate", "paper", "steal"], "how cores share panels of columns"] = "equal"
    flash: Annotated[
        int, "layers, the last ones, that every pass reads from flash, one while it computes another", AtLeast(0)
    ] = 0
    routing: RoutingText = None
    routing_seed: RoutingSeed = 0
    layers_run: LayersRun = None
