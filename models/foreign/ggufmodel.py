"""A GGUF file as a model: names, sizes and the order of rotary pairs, from llama.cpp's to those of Hugging Face.

Architectures `llama` (also Mistral) and `qwen2`, without experts. llama.cpp turns neighbouring numbers of a head where
Hugging Face turns the two halves, so its `llama` files have the rows of q and k in another order: row (h, d, half)
there is row (h, half, d) here; codes, scales and offsets go along with their rows. `qwen2` has them as they were.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from meshrt.models.config import MAX_LAYERS, Config
from meshrt.models.errors import ModelError
from meshrt.models.foreign.blocks import BITS, SIZE, codes_of, with_offset
from meshrt.models.foreign.gguf import Gguf, open_gguf
from meshrt.models.foreign.model import Foreign, add, check_all_or_none
from meshrt.models.foreign.words import tokenizer_texts
from meshrt.models.keys import Keys
from meshrt.models.quantize.codes import Codes
from meshrt.models.rope import inverse_frequencies

ARCHITECTURES = ("llama", "qwen2")
OUTSIDE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
           "output.weight": "lm_head.weight"}  # fmt: skip
INSIDE = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
FLOATS: Mapping[str, Any] = {"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
FACTORS = "rope_freqs.weight"
# What llama.cpp takes of any architecture, with the value that changes nothing.
NEUTRAL = {"attention.causal": True, "rope.scaling.attn_factor": 1.0, "rope.scaling.alpha": 0.0}
ROWS = 4096  # that are rebuilt together
LLAMA3 = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip


def read_gguf(path: Path) -> Foreign:
    """The model in a GGUF file. Raises ModelError."""
    file = open_gguf(path)
    config = read_sizes(file)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    kinds = {tensor.kind for name, tensor in file.tensors.items() if name.startswith("blk.") and len(tensor.shape) == 2}
    texts = tokenizer_texts(file.values, path)
    foreign = Foreign(path, "gguf " + " ".join(sorted(kinds)), config, SIZE, texts=texts)
    for name, tensor in file.tensors.items():
        if name == FACTORS:
            continue
        target, part = name_of(name, path)
        turned = heads.get(part) if config["model_type"] == "llama" else None
        order = None if turned is None else rows_in_order(path, name, tensor.shape[0], turned)
        if tensor.kind in BITS and target.endswith("_proj.weight") and len(tensor.shape) == 2:
            codes = named(path, name, tensor.kind, file.bytes_of(name), kinds >= {"Q4_0", "Q4_1"})
            add(foreign, target.removesuffix(".weight"), codes if order is None else ordered(codes, order))
        else:
            numbers = dense(file, name)
            foreign.tensors[target] = numbers if order is None else numbers[order]
    check_all_or_none(foreign)
    return foreign


def name_of(name: str, path: Path) -> tuple[str, str]:
    """A tensor's name here, and what it is called inside a layer ("" outside). ModelError."""
    if name in OUTSIDE:
        return OUTSIDE[name], ""
    stem, _, rest = name.partition(".")
    number, _, rest = rest.partition(".")
    part, _, end = rest.rpartition(".")
    inside = stem == "blk" and number.isdecimal() and number == str(int(number[:9])) and part in INSIDE
    if not inside or end not in ("weight", "bias"):
        raise ModelError(f"{path}: tensor {name} is none of a LLaMA's or Qwen2's without experts")
    return f"model.layers.{number}.{INSIDE[part]}.{end}", part


def rows_in_order(path: Path, name: str, rows: int, heads: int) -> NDArray[np.intp]:
    """Which rows of the file are the rows here, of a matrix with so many heads."""
    if rows % (2 * heads):
        raise ModelError(f"{path}: tensor {name} has {rows} rows, which are no pairs of {heads} heads")
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def ordered(codes: Codes, order: NDArray[np.intp]) -> Codes:
    offset = None if codes.offset is None else codes.offset[order]
    return Codes(codes.codes[order], codes.scale[order], None, codes.bits, codes.columns, offset)


def dense(file: Gguf, name: str) -> NDArray[Any]:
    """A tensor as numbers: floats as they are; blocks rebuilt, some by the gguf package, and rounded to float16."""
    tensor, rows = file.tensors[name], file.bytes_of(name)
    if tensor.kind in FLOATS:
        floats: NDArray[Any] = rows.view(FLOATS[tensor.kind]).reshape(tensor.shape)
        return floats
    if tensor.kind not in BITS and name not in OUTSIDE:
        raise ModelError(
            f"{file.path}: tensor {name} is {tensor.kind}; matrices of Q4_0, Q4_1, Q8_0, F32, F16 and BF16 can be read"
        )
    half = np.empty((rows.size // rows.shape[-1], tensor.shape[-1]), np.float16)
    flat = rows.reshape(len(half), -1)
    with np.errstate(all="ignore"):  # what is not finite is refused below
        for low in range(0, len(half), ROWS):
            half[low : low + ROWS] = rebuilt(file.path, name, tensor.kind, flat[low : low + ROWS])
    if not np.isfinite(half).all():
        raise ModelError(f"{file.path}: tensor {name} is not finite in float16")
    return half.reshape(tensor.shape)


def rebuilt(path: Path, name: str, kind: str, rows: NDArray[np.uint8]) -> NDArray[Any]:
    """Rows of blocks as numbers. ModelError."""
    if kind in BITS:
        return named(path, name, kind, rows).dequantized()
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError:
        raise ModelError(
            f"{path}: tensor {name} is {kind}, which the gguf package rebuilds: pip install gguf"
        ) from None
    whole: NDArray[Any] = quants.dequantize(rows, GGMLQuantizationType[kind])
    return whole


def named(path: Path, name: str, kind: str, rows: NDArray[np.uint8], offsets: bool = False) -> Codes:
    """Rows of blocks as codes, those of 4 bits with `offsets`. ModelError with the tensor's name."""
    try:
        codes = codes_of(kind, rows)
        return with_offset(codes) if offsets and codes.bits == 4 else codes
    except ModelError as error:
        raise ModelError(f"{path}: tensor {name}: {error}") from None


# -------------------------------------------------------------------------------------------------- sizes and constants


def read_sizes(file: Gguf) -> dict[str, Any]:
    """config.json, from what the file says. Raises ModelError."""
    read = Keys(file.values, str(file.path))
    kind = read.get("general.architecture", str)
    if kind not in ARCHITECTURES:
        raise read.bad("general.architecture", f"is {kind!r}; {' and '.join(ARCHITECTURES)} can be read")
    if read.get("split.count", int, 1) > 1:
        raise read.bad("split.count", "says that this is one of several files: merge them (llama-gguf-split --merge)")

    def size(key: str, default: int | None = None, most: int | None = None) -> int:
        return read.size(f"{kind}.{key}", default, **({} if most is None else {"most": most}))

    if read.has(f"{kind}.expert_count") and read.get(f"{kind}.expert_count", int) > 0:
        raise read.bad(f"{kind}.expert_count", "is set: mixtures of experts in GGUF cannot be read yet")
    for key, value in NEUTRAL.items():
        if read.get(f"{kind}.{key}", type(value), value) != value:
            raise read.bad(f"{kind}.{key}", f"is {read.found(f'{kind}.{key}')!r}; only {value!r} can be read")
    hidden, heads = size("embedding_length"), size("attention.head_count")
    head_dim = size("attention.key_length", max(hidden // heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if size(key, head_dim) != head_dim:
            raise read.bad(
                f"{kind}.{key}", f"is {size(key)}; a head has {head_dim} numbers, and all of them are turned"
            )
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: has no tensor token_embd.weight")
    matrices = [
        tensor.kind for name, tensor in file.tensors.items() if name.startswith("blk.") and name.endswith("_q.weight")
    ]
    config: dict[str, Any] = {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[kind]], "model_type": kind,
        "vocab_size": file.tensors["token_embd.weight"].shape[0], "hidden_size": hidden,
        "intermediate_size": size("feed_forward_length"),
        "num_hidden_layers": size("block_count", most=MAX_LAYERS), "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads), "head_dim": head_dim, "hidden_act": "silu",
        "max_position_embeddings": size("context_length"),
        "rms_norm_eps": _short(read.number(f"{kind}.attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "dtype": DTYPES.get((matrices or [""])[0], "float16"),
    }  # fmt: skip
    if kind == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    for key in ("bos_token_id", "eos_token_id"):
        if read.has(f"tokenizer.ggml.{key}"):
            config[key] = read.get(f"tokenizer.ggml.{key}", int)
    config |= _rope(read, kind)
    return _with_factors(file, config) if FACTORS in file.tensors else config


def _rope(read: Keys, kind: str) -> dict[str, Any]:
    theta = _short(read.number(f"{kind}.rope.freq_base", 10000.0))
    # llama.cpp divides by a factor, also of the key's old name, where no type is given; 0 and 1 are none.
    key = next((key for key in ("rope.scaling.factor", "rope.scale_linear") if read.has(f"{kind}.{key}")), None)
    scaling = read.get(f"{kind}.rope.scaling.type", str, "none" if key is None else "linear")
    if scaling not in ("none", "linear"):
        raise read.bad(f"{kind}.rope.scaling.type", f"is {scaling!r}; none and linear can be read")
    factor = _short(read.number(f"{kind}.{key or 'rope.scaling.factor'}")) if scaling == "linear" else 0
    if factor in (0, 1):
        return {"rope_theta": theta}
    return {"rope_theta": theta, "rope_scaling": {"type": "linear", "factor": factor}}


def _with_factors(file: Gguf, config: dict[str, Any]) -> dict[str, Any]:
    """LLaMA 3.1 and later: GGUF has the table by which turns are slowed down, and not its constants. Those of Meta's
    models are tried, with the factor of the slowest turn. ModelError where they make another table.
    """
    table = dense(file, FACTORS).astype(np.float64)
    scaled = config | {"rope_scaling": LLAMA3 | {"factor": _short(table.max())}}
    before, after = (inverse_frequencies(Config.from_dict(data, source=str(file.path))) for data in (config, scaled))
    if table.shape != before.shape or not np.allclose(before / after, table, rtol=1e-4, atol=0):
        raise ModelError(f"{file.path}: tensor {FACTORS} is not the table of LLaMA 3.1 or later, and no other is known")
    return scaled


def _short(value: float) -> float:
    """GGUF has float32; the number that was meant is the shortest that rounds to it: 1e-05, not 9.99999975e-06."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))
