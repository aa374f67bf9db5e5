"""tests/golden/onnx/*.npz, by torch's two exporters, of LLaMA and Qwen2 as transformers has them, which the tests do
without:

    pip install torch==2.13.0 transformers==5.23.0 onnx==1.23.2 onnxscript==0.7.2 && python tests/make_onnx.py

Of each: the file, token ids, and the logits that torch computes. tests/models/test_onnx_decoders.py imports them.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.cache_utils import DynamicCache

SIZES = {
    "vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
IDS = [[3, 1, 4, 15, 9, 26, 5]]


def models() -> dict[str, Any]:
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    tied = {"tie_word_embeddings": True, "rms_norm_eps": 1e-6}
    return {
        "llama": LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=plain, attn_implementation="eager")),
        "qwen2": Qwen2ForCausalLM(Qwen2Config(
            **SIZES | tied, rope_parameters=plain | {"rope_theta": 5e3}, attn_implementation="sdpa"
        )),
        "llama3": LlamaForCausalLM(LlamaConfig(
            **SIZES | {"num_hidden_layers": 1, "head_dim": 16}, rope_parameters=LLAMA3, attn_implementation="sdpa",
            attention_bias=True,
        )),
    }  # fmt: skip


class Whole(torch.nn.Module):
    """All tokens at once; the exporter without dynamo needs a mask, or it meets what it cannot write."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


class Past(torch.nn.Module):
    """Tokens after others, of which there are keys and values."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, *past: Any) -> Any:
        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        out = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)
        return (out.logits, *(part for layer in out.past_key_values.layers for part in (layer.keys, layer.values)))


def export(model: Any, dynamo: bool, past: bool) -> bytes:
    ids, config, buffer = torch.tensor(IDS), model.config, io.BytesIO()
    caches = 2 * config.num_hidden_layers if past else 0
    held = [torch.randn(1, config.num_key_value_heads, 3, getattr(config, "head_dim", 4)) for _ in range(caches)]
    args, module = (ids, *held), Past(model) if past else Whole(model)
    names = ["input_ids", *(f"past.{at}" for at in range(caches))]
    if not past and not dynamo:
        args, names = (ids, torch.ones_like(ids)), ["input_ids", "attention_mask"]
    outputs = ["logits", *(f"present.{at}" for at in range(caches))]
    if dynamo:
        auto = torch.export.Dim.AUTO
        shapes = {"input_ids": {1: auto}} | ({"past": tuple({2: auto} for _ in held)} if past else {})
        program = torch.onnx.export(
            module, args, None, input_names=names, output_names=outputs, dynamo=True, dynamic_shapes=shapes,
            opset_version=18, optimize=False, verbose=False,
        )  # fmt: skip
        proto = program.model_proto
    else:
        axes = {name: {2: "P"} if past else {1: "S"} for name in names[1:]} | {
            "input_ids": {1: "S"},
            "logits": {1: "S"},
        }
        axes |= {name: {2: "T"} for name in outputs[1:]}
        torch.onnx.export(
            module, args, buffer, input_names=names, output_names=outputs, dynamo=False, dynamic_axes=axes,
            opset_version=17,
        )  # fmt: skip
        proto = onnx.load_model_from_string(buffer.getvalue())
    for part in (proto, proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.input,
                 *proto.graph.output):  # fmt: skip
        part.ClearField("doc_string")  # where in whose Python a node comes from
        part.ClearField("metadata_props")
    return bytes(proto.SerializeToString())


if __name__ == "__main__":
    torch.manual_seed(0)
    folder = Path(__file__).parent / "golden" / "onnx"
    folder.mkdir(exist_ok=True)
    for name, model in models().items():
        model.eval()
        with torch.no_grad():
            for part, weight in model.named_parameters():
                spread = 0.1 if weight.dim() == 1 else 0.2
                weight.copy_(spread * torch.randn_like(weight) + ("norm" in part))
            logits = model(torch.tensor(IDS), use_cache=False).logits[0].numpy()
        for dynamo in (False, True):
            for past in (False, True):
                if name == "llama3" and (past or not dynamo):
                    continue
                data = export(model, dynamo, past)
                file = folder / f"{name}-{'dynamo' if dynamo else 'legacy'}{'-past' if past else ''}.npz"
                np.savez_compressed(file, model=np.frombuffer(data, np.uint8), ids=np.array(IDS[0]), logits=logits)
                print(file.name, len(data), file.stat().st_size)
