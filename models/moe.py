"""Mixtures of experts as config.json has them: Mixtral, DeepSeek-MoE (the first), Qwen2-MoE, OLMoE and Qwen3-MoE.

Keys and names of tensors are those of the published folders; Qwen1.5-MoE is of the type qwen2_moe. Routers have no
bias, no token is dropped, and noise and losses that are for training have no effect.
"""

from collections.abc import Callable

from meshrt.models.keys import MAX_SIZE, Keys
from meshrt.models.matrix import Experts, Matrix, Mlp
from meshrt.records import dataclass

MIXTURES = ("mixtral", "deepseek", "qwen2_moe", "olmoe", "qwen3_moe")
MAX_EXPERTS = 1 << 15  # in all layers: more than any model has, and tables of their shapes still fit

# Keys of other routers, with the values that change nothing: all others would silently give other numbers.
_ONLY = {"scoring_func": ("softmax",), "topk_method": ("greedy",), "n_group": (1,), "routed_scaling_factor": (1,)}
# Hugging Face reads and writes both names of this one number.
_COUNTS = ("num_experts", "num_local_experts")


@dataclass(frozen=True, kw_only=True)
class Moe:
    """The experts of a model's layers, all alike, and the layers that have an ordinary MLP instead."""

    experts: int
    top: int  # that a token takes
    inner: int  # columns of an expert
    renormalise: bool
    shared: int = 0  # columns of the expert that all tokens take; 0: there is none
    shared_gated: bool = False
    dense: tuple[int, ...] = ()  # layers without experts
    step: int = 1  # only every so many layers have experts, the first of them layer step - 1

    def has_experts(self, layer: int) -> bool:
        return layer not in self.dense and (layer + 1) % self.step == 0


def read_moe(read: Keys, kind: str, layers: int) -> Moe:
    """The experts of a configuration of one of MIXTURES. Raises ModelError with file and key."""
    for key, values in _ONLY.items():
        if read.has(key) and read.data[key] not in values:
            raise read.bad(key, f"is {read.data[key]!r}; only {values[0]!r} is supported")
    key = "n_routed_experts" if kind == "deepseek" else _count_key(read)
    experts = read.size(key, most=MAX_EXPERTS)
    if experts * layers > MAX_EXPERTS:
        raise read.bad(key, f"is {experts} in each of {layers} layers; all of them may have {MAX_EXPERTS}")
    top = read.size("num_experts_per_tok", most=experts)
    renormalise = kind == "mixtral" or read.get("norm_topk_prob", bool, False)
    if kind in ("mixtral", "olmoe"):
        return Moe(experts=experts, top=top, inner=read.size("intermediate_size"), renormalise=renormalise)
    inner = read.size("moe_intermediate_size")
    if kind == "deepseek":
        if read.size("moe_layer_freq", 1) != 1:
            raise read.bad("moe_layer_freq", f"is {read.data['moe_layer_freq']}; only 1 is supported")
        shared = _natural(read, "n_shared_experts", MAX_SIZE // inner)
        return Moe(
            experts=experts, top=top, inner=inner, shared=shared * inner,
            renormalise=renormalise and top > 1,  # one alone keeps its probability (modeling_deepseek.py, MoEGate)
            dense=tuple(range(_natural(read, "first_k_dense_replace", layers))),
        )  # fmt: skip
    dense = read.get("mlp_only_layers", list, [])
    if any(type(number) is not int or not 0 <= number < layers for number in dense):
        raise read.bad("mlp_only_layers", f"is {dense!r}; it must be a list of layers, 0 to {layers - 1}")
    gated = kind == "qwen2_moe"
    return Moe(
        experts=experts, top=top, inner=inner, renormalise=renormalise,
        shared=read.size("shared_expert_intermediate_size") if gated else 0, shared_gated=gated,
        dense=tuple(sorted({*dense})), step=read.size("decoder_sparse_step", 1),
    )  # fmt: skip


def _count_key(read: Keys) -> str:
    """Which of two names the number of experts has."""
    keys = [key for key in _COUNTS if read.has(key)] or [_COUNTS[0]]
    if len(keys) == 2 and read.data[keys[0]] != read.data[keys[1]]:
        raise read.bad(keys[0], f"and {keys[1]!r} are both set and differ; keep one of them")
    return keys[0]


def _natural(read: Keys, key: str, most: int) -> int:
    """A whole number from 0, which it is where there is none."""
    value: int = read.get(key, int, 0)
    if not 0 <= value <= most:
        raise read.bad(key, f"is {value}; it must be 0 to {most}")
    return value


def make_experts(kind: str, moe: Moe, hidden: int, matrix: Callable[[str, int, int], Matrix]) -> Experts:
    """A layer's. `matrix` makes one of that layer of a name, rows and columns."""
    block = "block_sparse_moe" if kind == "mixtral" else "mlp"
    names = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")

    def mlp(name: str, inner: int) -> Mlp:
        gate, up, down = (f"{block}.{name}.{part}" for part in names)
        return Mlp(matrix(gate, hidden, inner), matrix(up, hidden, inner), matrix(down, inner, hidden))

    return Experts(
        matrix(f"{block}.gate", hidden, moe.experts),
        tuple(mlp(f"experts.{number}", moe.inner) for number in range(moe.experts)),
        moe.top,
        moe.renormalise,
        mlp("shared_experts" if kind == "deepseek" else "shared_expert", moe.shared) if moe.shared else None,
        matrix(f"{block}.shared_expert_gate", hidden, 1) if moe.shared_gated else None,
    )
