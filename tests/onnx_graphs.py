"""ONNX graphs that are built node by node: a decoder in the spellings that exporters have, and graphs that are none."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from meshrt.models.config import read_config
from meshrt.models.folders.checkpoint import open_checkpoint
from meshrt.models.quantize.codes import Codes
from meshrt.models.rope import inverse_frequencies

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


@dataclass
class Builder:
    """Nodes and constants, as they are asked for."""

    nodes: list[Any] = field(default_factory=list)
    tensors: dict[str, Any] = field(default_factory=dict)

    def __call__(self, op: str, *inputs: Any, outputs: int = 1, name: str | None = None, **attributes: Any) -> Any:
        """A node; arrays among its inputs become constants. The name of its output, or the names."""
        names = [entry if isinstance(entry, str) else self.constant(entry) for entry in inputs]
        made = [name] if name else [f"v{len(self.nodes)}_{at}" for at in range(outputs)]
        self.nodes.append(helper.make_node(op, names, made, name=f"{op}_{len(self.nodes)}", **attributes))
        return made[0] if outputs == 1 else made

    def constant(self, array: Any, name: str | None = None) -> str:
        name = name or f"c{len(self.tensors)}"
        self.tensors[name] = numpy_helper.from_array(np.array(array, order="C"), name)
        return name

    def model(self, inputs: dict[str, Any], outputs: dict[str, Any], opset: int = 18) -> Any:
        """`inputs`, `outputs`: type and shape by name."""
        graph = helper.make_graph(
            self.nodes, "graph", [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
            [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()], [*self.tensors.values()],
        )  # fmt: skip
        domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=10)


def bits4(w: Any, group: int) -> Codes:
    """[out, in] in 4 bits with whole zeros, as onnxruntime's quantizer makes them."""
    padded = np.pad(w, ((0, 0), (0, -w.shape[1] % group))).reshape(len(w), -1, group)
    low, high = np.minimum(padded.min(axis=-1), 0), np.maximum(padded.max(axis=-1), 0)
    scale = ((high - low) / 15).astype(np.float16)
    zero = np.clip(np.rint(-low / scale), 0, 15)
    codes = np.clip(np.rint(padded / scale[..., None] + zero[..., None]), 0, 15).astype(np.uint8)
    return Codes(codes, scale, zero.astype(np.float16), 4, w.shape[1])


def packed(codes: Codes) -> tuple[Any, Any, Any]:
    """What MatMulNBits takes: bytes [N, blocks, bytes], scales and zero points."""
    q, zero = codes.codes, np.asarray(codes.zero).astype(np.uint8)
    padded = np.pad(zero, ((0, 0), (0, zero.shape[1] % 2)))
    return (q[..., ::2] | q[..., 1::2] << 4, codes.scale.astype(np.float32).reshape(-1),
            (padded[:, ::2] | padded[:, 1::2] << 4).reshape(-1))  # fmt: skip


def decoder(folder: Path, spelling: str = "plain", group: int | None = None) -> Any:
    """The model in a folder, with past keys and values and a dynamic number of tokens; spelled otherwise than torch.

    `plain`: norms divide by a root, halves are cut by Split and turned each for itself, q, k and v are one product that
    is split. `runtime`: onnxruntime's own norms. `gemm`: products of rows, SiLU by exp, a mask
    by Where. With `group` the layers' matrices are MatMulNBits of 4 bits.
    """
    config, files = read_config(folder), open_checkpoint(folder)
    read = {name: files.read(name).astype(np.float32) for name in files.tensors}
    b, size = Builder(), config.head_dim
    heads, kv = config.heads, config.kv_heads

    def const(*numbers: int) -> Any:
        return np.array(numbers, np.int64)

    def linear(x: str, *stems: str) -> str:
        w = np.concatenate([read[stem + ".weight"] for stem in stems])
        bias = [read[stem + ".bias"] for stem in stems if stem + ".bias" in read]
        if group is not None:
            codes = bits4(w, group)
            out = b("MatMulNBits", x, *packed(codes), domain="com.microsoft", K=w.shape[1], N=len(w), bits=4,
                    block_size=group, accuracy_level=4)  # fmt: skip
        elif spelling == "gemm":
            rows = b("Gemm", b("Reshape", x, const(-1, w.shape[1])), w, *map(np.concatenate, [bias] if bias else []),
                     transB=1)  # fmt: skip
            return str(b("Reshape", rows, const(1, -1, len(w))))
        else:
            out = b("MatMul", x, w.T)
        return str(b("Add", np.concatenate(bias), out) if bias else out)

    def norm(x: str, name: str) -> str:
        weight, eps = read[name + ".weight"], np.float32(config.eps)
        if spelling == "runtime":
            return str(b("SimplifiedLayerNormalization", x, weight, axis=-1, epsilon=float(eps), name=f"n.{name}"))
        square = b("Mul", x, x) if spelling == "plain" else b("Pow", x, np.array([2.0], np.float32))
        inner = b("Add", eps, b("ReduceMean", square, const(-1), keepdims=1))
        if spelling == "plain":
            return str(b("Mul", b("Div", x, b("Sqrt", inner)), weight))
        return str(b("Mul", weight, b("Mul", b("Pow", inner, np.float32(-0.5)), x)))

    def turned(x: str) -> str:
        low, high = b("Split", x, const(size // 2, size // 2), outputs=2, axis=-1)
        first = b("Sub", b("Mul", low, cos), b("Mul", sin, high))
        return str(b("Concat", first, b("Add", b("Mul", high, cos), b("Mul", low, sin)), axis=-1))

    def split(x: str, count: int) -> str:
        shape = b("Concat", const(1), tokens, const(count), const(size), axis=0)
        return str(b("Transpose", b("Reshape", x, shape), perm=[0, 2, 1, 3]))

    def repeated(x: str) -> str:
        if heads == kv:
            return x
        wide = b("Concat", const(1), const(kv), const(heads // kv), every, const(size), axis=0)
        expanded = b("Expand", b("Unsqueeze", x, const(2)), wide)
        return str(b("Reshape", expanded, b("Concat", const(1), const(heads), every, const(size), axis=0)))

    tokens = b("Gather", b("Shape", "input_ids"), const(1), axis=0)
    before = b("Gather", b("Shape", "past.0.k"), const(2), axis=0)
    every = b("Add", before, tokens)
    flat = [b("Squeeze", length, const(0)) for length in (before, every)]
    positions = b("Range", flat[0], flat[1], np.int64(1))
    angles = b("Mul", b("Unsqueeze", b("Cast", positions, to=FLOAT), const(1)), inverse_frequencies(config))
    cos, sin = b("Cos", angles), b("Sin", angles)
    seen = b("LessOrEqual", b("Unsqueeze", b("Range", np.int64(0), flat[1], np.int64(1)), const(0)),
             b("Unsqueeze", positions, const(1)))  # fmt: skip
    added = b("Where", seen, np.float32(0), np.float32(-1e9))
    x = b("Gather", read["model.embed_tokens.weight"], "input_ids")
    inputs = {"input_ids": (INT, [1, "S"])}
    outputs: dict[str, Any] = {"logits": (FLOAT, [1, "S", config.vocab_size])}
    for layer in range(config.layers):
        stem = f"model.layers.{layer}."
        own = [f"{stem}self_attn.{letter}_proj" for letter in "qkv"]
        normed = norm(x, stem + "input_layernorm")
        if spelling == "plain":
            q, k, v = b("Split", linear(normed, *own), const(heads * size, kv * size, kv * size), outputs=3, axis=2)
        else:
            q, k, v = (linear(normed, matrix) for matrix in own)
        q, k, v = turned(split(q, heads)), turned(split(k, kv)), split(v, kv)
        held = {"k": (FLOAT, [1, kv, "P", size]), "v": (FLOAT, [1, kv, "P", size])}
        inputs |= {f"past.{layer}.{part}": kind for part, kind in held.items()}
        outputs |= {f"present.{layer}.{part}": (FLOAT, [1, kv, "T", size]) for part in "kv"}
        k = b("Concat", f"past.{layer}.k", k, axis=2, name=f"present.{layer}.k")
        v = b("Concat", f"past.{layer}.v", v, axis=2, name=f"present.{layer}.v")
        q = b("Div", q, np.float32(size**0.5))
        scores = b("MatMul", q, b("Transpose", repeated(k), perm=[0, 1, 3, 2]))
        masked = spelling == "gemm"
        scores = b("Where", seen, scores, np.float32(-1e30)) if masked else b("Add", added, scores)
        mixed = b("MatMul", b("Softmax", scores, axis=-1), repeated(v))
        merged = b(
            "Reshape",
            b("Transpose", mixed, perm=[0, 2, 1, 3]),
            b("Concat", const(1), tokens, const(heads * size), axis=0),
        )
        x = b("Add", linear(merged, stem + "self_attn.o_proj"), x)
        normed = norm(x, stem + "post_attention_layernorm")
        gate, up = (linear(normed, f"{stem}mlp.{way}_proj") for way in ("gate", "up"))
        if spelling == "gemm":
            active = b("Div", gate, b("Add", np.float32(1), b("Exp", b("Neg", gate))))
        else:
            active = b("Mul", b("Sigmoid", gate), gate)
        x = b("Add", x, linear(b("Mul", up, active), stem + "mlp.down_proj"))
    head = read["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]
    b("MatMul", norm(x, "model.norm"), head.T, name="logits")
    return b.model(inputs, outputs)


def mlp(inputs: int = 13, inner: int = 21, outputs: int = 11, seed: int = 0) -> Any:
    """Two products with ReLU between them, a LayerNorm and a softmax; the batch has a name."""
    rng, b = np.random.default_rng(seed), Builder()

    def weight(*shape: int) -> Any:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    x = b("Relu", b("Add", b("MatMul", "x", weight(inputs, inner)), weight(inner)))
    x = b("Gemm", x, weight(outputs, inner), weight(outputs), transB=1, alpha=0.5)
    x = b("LayerNormalization", x, weight(outputs), weight(outputs))
    b("Softmax", x, axis=-1, name="y")
    return b.model({"x": (FLOAT, ["batch", inputs])}, {"y": (FLOAT, ["batch", outputs])})


def attention_block(heads: int = 2, size: int = 5, tokens: int = 6, seed: int = 0) -> Any:
    """Words looked up, causal attention without positions, the residual, means, GELU."""
    rng, b, wide = np.random.default_rng(seed), Builder(), heads * size

    def weight(*shape: int) -> Any:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    x = b("Gather", weight(17, wide), "ids", axis=0)
    shape = np.array([1, tokens, heads, size])
    q, k, v = (
        b("Transpose", b("Reshape", b("MatMul", x, weight(wide, wide)), shape), perm=[0, 2, 1, 3]) for _ in "qkv"
    )
    scores = b("Mul", b("MatMul", q, b("Transpose", k, perm=[0, 1, 3, 2])), np.float32(size**-0.5))
    shares = b("Softmax", b("Add", scores, np.triu(np.full((tokens, tokens), -1e9, np.float32), 1)))
    mixed = b("Reshape", b("Transpose", b("MatMul", shares, v), perm=[0, 2, 1, 3]), np.array([1, tokens, wide]))
    y = b("Add", b("MatMul", mixed, weight(wide, wide)), x)
    b("Gelu", y, name="y")
    b("Sub", y, b("ReduceMax", y, np.array([-1]), keepdims=1), name="z")
    return b.model({"ids": (INT, [1, tokens])}, {"y": (FLOAT, [1, tokens, wide]), "z": (FLOAT, [1, tokens, wide])}, 20)


def save(model: Any, path: Path) -> Path:
    onnx.save(model, path)
    return path


def functions() -> Any:
    """What neither multiplies matrices nor norms: functions, comparisons, choices, whole numbers, and numbers moved."""
    b = Builder()
    size = b("Add", b("Abs", "x"), np.array(0.25, np.float32))
    first = b("Add", b("Sin", b("Mul", "x", np.array(40, np.float32))), b("Cos", "x"))
    raised = b("Pow", size, np.linspace(-2, 3, 13, dtype=np.float32))
    above = b("And", b("Greater", "x", first), b("Not", b("LessOrEqual", raised, size)))
    other = b("Or", b("Less", "x", np.array(0, np.float32)), b("GreaterOrEqual", raised, np.array(1, np.float32)))
    same = b("Equal", b("And", above, other), other)
    chosen = b("Where", same, b("Log", size), b("Add", first, raised))
    turned = b(
        "Slice", b("Transpose", chosen, perm=[1, 0]), np.array([1]), np.array([12]), np.array([0]), np.array([2])
    )
    ids = b("Sub", b("Max", b("Mul", "ids", np.array([3])), np.array([-5])), b("Neg", np.array([9])))
    ids = b("Where", b("Greater", ids, np.array([12])), b("Min", b("Abs", "ids"), np.array([11])), ids)
    b("Identity", ids, name="z")
    picked = b("Gather", b("Transpose", chosen, perm=[1, 0]), ids)
    b("Concat", turned, b("Expand", picked, np.array([5, 3])), axis=0, name="y")
    inputs = {"x": (FLOAT, [3, 13]), "ids": (INT, [5])}
    return b.model(inputs, {"y": (FLOAT, [11, 3]), "z": (INT, [5])})
