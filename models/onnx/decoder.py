"""A graph after its passes as a decoder: LLaMA or Qwen2, with weights by the names of Hugging Face, as a folder.

What is fused is walked from the logits down. What remains is run (probe.py): the mask must be the causal one, and the
rotary tables those of a configuration.
"""

from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from meshrt.models.errors import ModelError
from meshrt.models.folders.files import find_file, read_object
from meshrt.models.foreign.model import Foreign, add
from meshrt.models.onnx.causal import NoSuchDecoder, check_masks, name_of
from meshrt.models.onnx.fuse import bare, is_ours
from meshrt.models.onnx.graphs import attribute, constant, is_op, maker, sizes
from meshrt.models.onnx.linear import OnnxLinear, linear_of
from meshrt.models.onnx.rotary import read_rope
from meshrt.models.quantize.codes import Codes
from meshrt.records import dataclass

Array = NDArray[Any]
FALLBACK_POSITIONS = 4096


@dataclass
class DecoderParts:
    """Parts of a decoder, its layers from the last one to the first."""

    attentions: list[ir.Node] = field(default_factory=list)
    linears: dict[str, OnnxLinear] = field(default_factory=dict)
    norms: dict[str, ir.Node] = field(default_factory=dict)
    table: ir.Value | None = None
    ids: ir.Value | None = None


def is_decoder(graph: ir.Graph) -> bool:
    """Is there one attention at least, and a table of words?"""
    return any(is_ours(node, "Attention") for node in graph)


def read_decoder(model: ir.Model, path: Path) -> Foreign:
    """Raises ModelError naming the node that does not fit."""
    try:
        parts = walk(model.graph)
        return _foreign(model.graph, parts, path)
    except (NoSuchDecoder, ModelError) as other:
        where = "" if str(other).startswith(str(path)) else f"{path}: "
        raise ModelError(f"{where}{other}") from None


# ---------------------------------------------------------------------------------------------------------------- walk


def walk(graph: ir.Graph) -> DecoderParts:
    """From the logits down to the ids. NoSuchDecoder where it is no LLaMA."""
    parts = DecoderParts()
    logits = next((value for value in graph.outputs if sizes(value) and not maker(value, "Concat")), graph.outputs[0])
    x = _linear(parts, "lm_head", logits)
    x = _norm(parts, "model.norm", x)
    layers: list[dict[str, Any]] = []
    while maker(bare(x), "Gather") is None:
        stem = str(len(layers))  # from the last on; numbered anew below
        layers.append({})
        x = _layer(parts, stem, x)
    node = maker(bare(x), "Gather")
    assert node is not None
    table, ids = node.inputs
    if constant(table) is None or attribute(node, "axis", 0) != 0 or ids is None:
        raise NoSuchDecoder(f"{name_of(node)} is no look-up of words in a table")
    while (moved := maker(ids, "Reshape", "Cast", "Squeeze", "Unsqueeze")) is not None:
        ids = moved.inputs[0]
    if ids is None or not ids.is_graph_input():
        raise NoSuchDecoder(f"{name_of(node)} looks up what is no input of the graph")
    parts.table, parts.ids = table, ids
    return parts


def _layer(parts: DecoderParts, layer: str, x: ir.Value) -> ir.Value:
    """x after a layer: what it was before."""
    middle = _sum(x, "SwiGLU", f"{layer}.mlp.down_proj", parts)
    swiglu = _ours(parts.linears[f"{layer}.mlp.down_proj"].source, "SwiGLU")
    sources = [_linear(parts, f"{layer}.mlp.{name}_proj", value) for name, value in
               zip(("gate", "up"), swiglu.inputs, strict=True)]  # fmt: skip
    _same(sources, swiglu)
    if _norm(parts, f"{layer}.post_attention_layernorm", sources[0]) is not middle:
        raise NoSuchDecoder(f"{name_of(swiglu)}: what it is computed from is not what is added to it")
    x = _sum(middle, "Attention", f"{layer}.self_attn.o_proj", parts)
    attention = _ours(parts.linears[f"{layer}.self_attn.o_proj"].source, "Attention")
    parts.attentions.append(attention)
    sources = [_linear(parts, f"{layer}.self_attn.{name}_proj", value) for name, value in
               zip("qkv", attention.inputs[:3], strict=True)]  # fmt: skip
    _same(sources, attention)
    if _norm(parts, f"{layer}.input_layernorm", sources[0]) is not x:
        raise NoSuchDecoder(f"{name_of(attention)}: what it is computed from is not what is added to it")
    return x


def _sum(x: ir.Value, kind: str, name: str, parts: DecoderParts) -> ir.Value:
    """y of x = y + linear(..kind..)."""
    node = maker(bare(x), "Add")
    for at in (1, 0) if node else ():
        product, rest = node.inputs[at], bare(node.inputs[1 - at])  # type: ignore[union-attr]  # there is a node, or no turn
        own = linear_of(product)
        if own is not None and is_ours(_producer(own.source), kind) and rest is not None:
            parts.linears[name] = own
            return rest
    raise NoSuchDecoder(f"{name_of(_producer(x))} is no sum with a product of {kind}")


def _producer(value: ir.Value | None) -> ir.Node | None:
    value = bare(value)
    return None if value is None else value.producer()


def _ours(value: ir.Value, kind: str) -> ir.Node:
    node = _producer(value)
    assert node is not None, kind
    return node


def _linear(parts: DecoderParts, name: str, value: ir.Value | None) -> ir.Value:
    own = linear_of(value)
    if own is None:
        raise NoSuchDecoder(f"{name_of(_producer(value))} is no product with a constant matrix, where {name} would be")
    parts.linears[name] = own
    return own.source


def _norm(parts: DecoderParts, name: str, value: ir.Value) -> ir.Value:
    node = _producer(value)
    while is_op(node, "Slice", "Gather", "GatherND") and node is not None and name == "model.norm":
        value = node.inputs[0] or value  # the logits of some tokens
        node = _producer(value)
    if node is None or not is_ours(node, "RMSNorm"):
        raise NoSuchDecoder(f"{name_of(node)} is no RMSNorm, where {name} would be")
    parts.norms[name] = node
    source = bare(node.inputs[0])
    assert source is not None
    return source


def _same(values: list[ir.Value], node: ir.Node) -> None:
    if any(value is not values[0] for value in values):
        raise NoSuchDecoder(f"{name_of(node)}: its products have inputs that differ")


# -------------------------------------------------------------------------------------------------------------- folder


def _foreign(graph: ir.Graph, parts: DecoderParts, path: Path) -> Foreign:
    layers = len(parts.attentions)
    first = parts.attentions[0]
    heads, kv_heads, size = (int(attribute(first, name)) for name in ("heads", "kv_heads", "size"))
    for node in parts.attentions:
        if [attribute(node, name) for name in ("heads", "kv_heads", "size")] != [heads, kv_heads, size]:
            raise NoSuchDecoder(f"{name_of(node)} has other heads than the last layer's")
        if abs(attribute(node, "scale") * size**0.5 - 1) > 1e-3:
            raise NoSuchDecoder(f"{name_of(node)} scales by {attribute(node, 'scale')}, not by {size}^-0.5")
    epsilons = {round(attribute(node, "eps"), 12) for node in parts.norms.values()}
    if len(epsilons) > 1:
        raise NoSuchDecoder(f"norms have several epsilons: {sorted(epsilons)}")
    check_masks(graph, parts.attentions, parts.ids)
    table, head = constant(parts.table), parts.linears["lm_head"]
    assert table is not None
    biased = {name for name, linear in parts.linears.items() if linear.bias is not None}
    kinds = {name.rpartition(".")[2] for name in biased}
    whole = {name for name in parts.linears if name.rpartition(".")[2] in kinds}
    own = [{"q_proj", "k_proj", "v_proj"}, {"q_proj", "k_proj", "v_proj", "o_proj"}]
    if kinds and (kinds not in own or biased != whole):
        raise NoSuchDecoder(
            f"products with a bias: {', '.join(sorted(kinds))}; LLaMA has it of q, k, v and o, Qwen2 of q, k, v"
        )
    model_type = "qwen2" if len(kinds) == 3 else "llama"
    tied = head.codes is None and head.array().shape == table.shape and np.array_equal(head.array(), table)
    config: dict[str, Any] = {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[model_type]],
        "model_type": model_type, "vocab_size": table.shape[0], "hidden_size": table.shape[1],
        "intermediate_size": parts.linears["0.mlp.gate_proj"].outputs, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": size, "hidden_act": "silu",
        "rms_norm_eps": _short(epsilons.pop()), "tie_word_embeddings": tied,
        "dtype": {"float16": "float16", "bfloat16": "bfloat16"}.get(str(table.dtype), "float32"),
    }  # fmt: skip
    if model_type == "llama":
        config["attention_bias"] = bool(kinds)
    config |= read_rope(graph, first, parts.ids, config) | _beside(path)
    foreign = Foreign(path, "onnx", config, _group(parts), base=_base(path))
    foreign.tensors["model.embed_tokens.weight"] = _numbers("the table of words", table)
    for name, node in parts.norms.items():
        foreign.tensors[f"{_renamed(name, layers)}.weight"] = _numbers(name, _vector(node.inputs[1]))
    for name, own_linear in parts.linears.items():
        full = _renamed(name, layers)
        if name == "lm_head" and tied:
            continue
        if own_linear.codes is None:
            foreign.tensors[full + ".weight"] = _numbers(name, own_linear.array())
        elif name == "lm_head":
            foreign.tensors[full + ".weight"] = own_linear.codes.dequantized().astype(np.float16)
        else:
            add(foreign, full, own_linear.codes)
        if own_linear.bias is not None:
            foreign.tensors[full + ".bias"] = _numbers(name, own_linear.bias)
    return foreign


def _numbers(name: str, array: Array) -> Array:
    if array.dtype.kind != "f" and str(array.dtype) != "bfloat16":
        raise NoSuchDecoder(f"{name} has weights of {array.dtype}; a decoder's are floats, or codes of a product")
    return array


def _renamed(name: str, layers: int) -> str:
    number, _, rest = name.partition(".")
    return f"model.layers.{layers - 1 - int(number)}.{rest}" if number.isdecimal() else name


def _vector(value: ir.Value | None) -> Array:
    numbers = constant(value)
    if numbers is None:
        raise NoSuchDecoder(f"{name_of(None if value is None else value.producer())} is no constant weight of a norm")
    return np.ascontiguousarray(numbers.reshape(-1))


def _group(parts: DecoderParts) -> int:
    codes: list[Codes] = [
        linear.codes for name, linear in parts.linears.items() if linear.codes is not None and name != "lm_head"
    ]
    groups = {matrix.codes.shape[2] for matrix in codes}
    if len(groups) > 1:
        raise NoSuchDecoder(f"matrices in codes have blocks of {sorted(groups)}; one size for all can be read")
    return groups.pop() if groups else 32


def _short(value: float) -> float:
    """The graph has float32; the number that was meant is the shortest that rounds to it."""
    return float(str(np.float32(value)))


def _base(path: Path) -> Path | None:
    """The folder of the file, where it is that of a model: its tokenizer goes along."""
    return path.parent if find_file(path.parent, "config.json") is not None else None


def _beside(path: Path) -> dict[str, Any]:
    """What a config.json in the same folder knows and a graph does not: how far positions go, and ids that end."""
    source = find_file(path.parent, "config.json")
    said = read_object(source) if source is not None else {}
    keys = ("max_position_embeddings", "bos_token_id", "eos_token_id")
    values = {key: said[key] for key in keys if isinstance(said.get(key), int | list)}
    return {"max_position_embeddings": FALLBACK_POSITIONS} | values
