"""Models as GGUF files, by the gguf package: names, order of rows and blocks as llama.cpp's converter makes them."""

from pathlib import Path
from typing import Any

import numpy as np

from meshrt.models.config import Config, read_config
from meshrt.models.folders.checkpoint import open_checkpoint

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def permuted(x: Any, heads: int) -> Any:
    """As convert_hf_to_gguf.py does it, for q and k of LLaMA."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def file_name(name: str) -> str:
    stem, _, end = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{end}"
    _, _, number, *rest = stem.split(".")
    return f"blk.{number}.{NAMES['.'.join(rest)]}.{end}"


def write_gguf(
    folder: Path, out: Path, kind: str, kinds: dict[str, str] | None = None, more: dict[str, Any] | None = None,
    words: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The model with its matrices and embedding in blocks of that kind, some (`kinds`, by GGUF's names) in others;
    `more` are tensors beside. What tensors are when gguf's own dequantizer has rebuilt them, in Hugging Face's order.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    config, checkpoint = read_config(folder), open_checkpoint(folder)
    arch = config.model_type if config.model_type == "qwen2" else "llama"
    writer, rebuilt = GGUFWriter(str(out), arch), {}
    _sizes(writer, config, words)
    for name in checkpoint.tensors:
        w, target = checkpoint.read(name).astype(np.float32), file_name(name)
        own = (kinds or {}).get(target, kind if w.ndim == 2 else "F32")
        heads = {"q": config.heads, "k": config.kv_heads}.get(target.split("attn_")[-1][0] if "attn_" in target else "")
        turned = permuted(w, heads) if arch == "llama" and heads and "_norm" not in target else w
        if own in ("F32", "F16"):
            data = turned.astype({"F32": np.float32, "F16": np.float16}[own])
            writer.add_tensor(target, data)
            rebuilt[name] = w.astype(data.dtype)
            continue
        number = GGMLQuantizationType[own]
        writer.add_tensor(target, quants.quantize(turned, number), raw_dtype=number)
        rebuilt[name] = quants.dequantize(quants.quantize(w, number), number)
    for name, tensor in (more or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return rebuilt


def _sizes(writer: Any, config: Config, words: dict[str, Any] | None) -> None:
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_layer_norm_rms_eps(config.eps)
    if config.rope.kind == "linear":
        from gguf import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope.factor)
    if config.bos_token_id is not None:
        writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_ids[0])
    if words is not None:
        writer.add_tokenizer_model(words["tokenizer.ggml.model"])
        writer.add_tokenizer_pre(words["tokenizer.ggml.pre"])
        writer.add_token_list(words["tokenizer.ggml.tokens"])
        writer.add_token_types(words["tokenizer.ggml.token_type"].tolist())
        writer.add_token_merges(words["tokenizer.ggml.merges"])
        writer.add_add_bos_token(words["tokenizer.ggml.add_bos_token"])
