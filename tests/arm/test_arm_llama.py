"""LLaMA on Arm cores: each product to the bit, the rest against float64; any cores and ranks; caches that grow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import CASES, random_checkpoint
from runs import run_on_arm
from test_arm_linear import expected, new_soc
from tiers import examples

from meshrt.arm.device import find_arm_device
from meshrt.arm.memory import Dram
from meshrt.errors import LimitError, UsageError
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.quantize import codes as grids
from meshrt.models.quantize.model import quantize, read_model, statistics
from meshrt.models.quantize.sizes import CodeScheme
from meshrt.models.reference import forward, load_weights
from meshrt.models.stories import stories
from meshrt.models.tokenizer import encode, load_tokenizer
from meshrt.programs.arm.attention import HeadCounts, attention
from meshrt.programs.arm.kv import ArmLayerCache
from meshrt.programs.arm.products import forms as products
from meshrt.programs.arm.products.inputs import RowSource
from meshrt.programs.arm.simd.vectors import units_of

IDS = {"prompt_ids": "1,2,3,77,200,31,8,9,100,4,5", "max_new_tokens": 3, "ignore_eos": True}


def logits_of(comm: Any, folder: Path, **options: Any) -> np.ndarray:
    """Of all tokens, and the report's text."""
    run_on_arm(comm, "llama", logits=str(folder / "logits.npy"), **IDS | options)
    comm.Barrier()
    return np.load(folder / "logits.npy")


# ---- products


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "options", [{}, {"bits": "8", "group": 32}, {"activations": "block", "symmetric": True}], ids=str
)
def test_every_product_is_that_of_the_integer_reference(
    options: dict[str, Any], comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same inputs, to the bit: layer by layer, as rounding that differs once spreads (W4A8)."""
    inputs: list[np.ndarray] = []
    quantized, product = products.quantized, products.product

    def watched_inputs(soc: Any, source: RowSource, shape: tuple[int, int], *rest: Any) -> Any:
        seen: list[np.ndarray] = []

        def before(team: Any) -> Any:
            stays, numbers = source.before(team)
            assert numbers is not None
            seen.append(numbers)
            return stays, numbers

        made = quantized(soc, replace(source, before=before), shape, *rest)
        inputs.append(np.concatenate(seen))
        return made

    outputs: list[np.ndarray] = []

    def watched_product(*given: Any) -> Any:
        out = product(*given)
        assert out is not None
        outputs.append(out)
        return out

    monkeypatch.setattr(products, "quantized", watched_inputs)
    monkeypatch.setattr(products, "product", watched_product)
    logits_of(comm, tmp_path, cores=3, **options)
    folder = find_model("llama-tiny")
    config, weights = read_config(folder), load_weights(folder)
    even, blocks, group = options.get("symmetric", False), "activations" in options, options.get("group", 64)

    def codes(bits: int, *names: str) -> grids.Codes:
        return (grids.symmetric if even else grids.nearest)(
            np.concatenate([weights[name] for name in names]), bits, group
        )

    bits, stems = int(options.get("bits", 4)), [f"model.layers.{number}." for number in range(config.layers)]
    parts = [("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("self_attn.o_proj",),
             ("mlp.gate_proj", "mlp.up_proj"), ("mlp.down_proj",)]  # fmt: skip
    matrices = [codes(bits, *(f"{stem}{name}.weight" for name in names)) for stem in stems for names in parts]
    matrices.append(codes(8, "model.embed_tokens.weight"))
    assert len(inputs) == len(outputs) == 3 * len(matrices)
    for at, (x, y) in enumerate(zip(inputs, outputs, strict=True)):
        assert (y == expected(x, matrices[at % len(matrices)], group, blocks)).all(), at


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["gqa82", "bias", "qwen2", "mqa", "untied", "llama3", "headdim"])
def test_logits_are_near_those_of_the_weights(name: str, comm: Any, tmp_path: Path) -> None:
    """In 8 bits, which leaves rounding of some hundredths: biases, groups of heads, rotary embedding are all there."""
    random_checkpoint(CASES[name], tmp_path / name, 7)
    logits = logits_of(
        comm, tmp_path, model=str(tmp_path / name), prompt_ids="1,5,2,9,3,3,8", max_new_tokens=3, bits="8", group=32,
        kv="float32",
    )  # fmt: skip
    report = run_on_arm(comm, "llama", model=str(tmp_path / name), prompt_ids="1,5,2,9,3,3,8", max_new_tokens=3,
                        bits="8", group=32, kv="float32", ignore_eos=True)  # fmt: skip
    ids = [1, 5, 2, 9, 3, 3, 8, *report["result"]["token_ids"][:-1]]
    truth = forward(read_config(tmp_path / name), load_weights(tmp_path / name), ids)
    assert np.linalg.norm(logits - truth) <= 0.05 * np.linalg.norm(truth)


@pytest.mark.all
@pytest.mark.mpi(ranks=[1])
def test_perplexity_rises_by_less_than_half_a_percent(comm: Any, tmp_path: Path) -> None:
    """In 4 bits, of two stories that llama-tiny has not seen."""
    folder = find_model("llama-tiny")
    config, weights, tokenizer = read_config(folder), load_weights(folder), load_tokenizer(folder)
    losses = np.zeros(2)
    count = 0
    for story in stories(987_654_321, 2):
        ids = encode(tokenizer, story)
        text = ",".join(map(str, ids))
        on_arm = logits_of(comm, tmp_path, prompt_ids=text, max_new_tokens=1)
        for at, logits in enumerate((forward(config, weights, ids), on_arm.astype(np.float64))):
            raised = np.exp(logits[:-1] - logits[:-1].max(axis=1, keepdims=True))
            shares = raised / raised.sum(axis=1, keepdims=True)
            losses[at] -= np.log(shares[np.arange(len(ids) - 1), ids[1:]]).sum()
        count += len(ids) - 1
    assert 0 < losses[1] / count - losses[0] / count < 0.005


# ---- what may change nothing


@pytest.mark.mpi(ranks=[1, 2, 3, 8])
@pytest.mark.parametrize(
    "options", [{}, {"device": "phone", "split": "steal", "kv": "int8", "attention": "concat"}], ids=str
)
def test_ranks_change_nothing(options: dict[str, Any], comm: Any, tmp_path: Path) -> None:
    from mpi4py import MPI

    folder = Path(comm.bcast(str(tmp_path)))
    report = run_on_arm(comm, "llama", logits=str(folder / "all.npy"), **IDS | options)
    comm.Barrier()
    if comm.rank == 0:
        alone = run_on_arm(MPI.COMM_SELF, "llama", logits=str(folder / "one.npy"), **IDS | options)
        assert (folder / "all.npy").read_bytes() == (folder / "one.npy").read_bytes()
        report.pop("host"), alone.pop("host")
        assert report["arguments"].pop("logits") != alone["arguments"].pop("logits")
        assert report == alone


@pytest.mark.mpi(ranks=[1])
def test_cores_split_device_and_cache_change_no_bit(comm: Any, tmp_path: Path) -> None:
    first = logits_of(comm, tmp_path, layers=2)
    for options in (
        {"cores": 1, "kv_chunk": "3"}, {"device": "phone", "split": "rate"}, {"cores": 5, "split": "paper"},
        {"attention": "concat", "limits": {"slc_bytes": 9000}},
    ):  # fmt: skip
        assert (logits_of(comm, tmp_path, layers=2, **options) == first).all(), options


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "options", [{}, {"kv": "e4m3", "attention": "concat"}, {"kv": "int8", "split": "steal"}], ids=str
)
def test_shapes_alone_give_the_same_counts(options: dict[str, Any], comm: Any) -> None:
    whole, shape = (run_on_arm(comm, "llama", payload=payload, layers=2, **IDS | options) for payload in (True, False))
    assert whole["measured"] == shape["measured"] and whole["phases"] == shape["phases"]


# ---- attention


@settings(max_examples=examples(25))
@given(
    st.integers(1, 14), st.integers(0, 20), st.sampled_from([(1, 1), (2, 2), (1, 3)]), st.sampled_from([4, 16, 18]),
    st.sampled_from(["float32", "float16", "int8", "e4m3"]), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_attention_is_that_of_float64(
    tokens: int, held: int, heads: tuple[int, int], size: int, kind: Any, fused: bool, seed: int
) -> None:
    kv, group = heads
    soc, rng = new_soc(3), np.random.default_rng(seed)
    shape = HeadCounts(kv * group, kv, size)
    cache = ArmLayerCache(soc, "c", kv, size, kind, 5, fused)
    cos, sin = rng.uniform(-1, 1, (2, held + tokens, size // 2)).astype(np.float32)
    qkv = rng.standard_normal((held + tokens, (kv * group + 2 * kv) * size)).astype(np.float32)
    rows = []
    for span in (slice(0, held), slice(held, held + tokens)):
        number = span.stop - span.start
        if number:
            rotary = cos[span], sin[span]
            rows.append(attention(soc, qkv[span], number, shape, cache, rotary, None, False, -1, -2, 10))
    truth = attention_in_float64(qkv.astype(np.float64), shape, cos, sin)
    tolerance = {"float32": 1e-5, "float16": 0.01, "int8": 0.03, "e4m3": 0.15}[kind]
    assert np.abs(np.concatenate(rows) - truth).max() <= tolerance * np.abs(truth).max()


def attention_in_float64(qkv: np.ndarray, heads: HeadCounts, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    by_head = qkv.reshape(len(qkv), -1, heads.size)
    out = []
    for head in range(heads.queries):
        q, k, v = (by_head[:, at] for at in (head, heads.queries + head // heads.group,
                                             heads.queries + heads.kv + head // heads.group))  # fmt: skip
        half = heads.size // 2
        q, k = (np.concatenate((x[:, :half] * cos - x[:, half:] * sin, x[:, half:] * cos + x[:, :half] * sin), 1)
                for x in (q, k))  # fmt: skip
        scores = np.where(np.tri(len(qkv), dtype=bool), q @ k.T / np.sqrt(heads.size), -np.inf)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        out.append(shares / shares.sum(axis=1, keepdims=True) @ v)
    return np.concatenate(out, 1)


def nothing(team: Any) -> tuple[None, None]:
    """Keys and values by shape."""
    return None, None


@pytest.mark.parametrize(
    ("fused", "chunk", "copied", "room"), [(False, 1, 3672.8, 8.75), (True, 64, 58.5, 9.0), (True, 560, 4.375, 8.75),
                                           (True, 1024, 8.0, 16.0)],
)  # fmt: skip
def test_a_cache_that_grows_copies_what_it_has(fused: bool, chunk: int, copied: float, room: float) -> None:
    """560 to 1,120 tokens of one layer in float16; MiB for a hidden size of 2,048, of which this is a 16th."""
    cache = ArmLayerCache(new_soc(payload=False), "c", 1, 128, "float16", chunk, fused)
    for tokens in (560, *(1 for _ in range(560))):
        cache.append(tokens, lambda head: [], nothing)
    mebibytes = 2**20 / 16
    assert cache.copied / mebibytes == pytest.approx(copied, abs=0.05)
    assert 2 * cache.room * cache.token_bytes / mebibytes == room and cache.held == 1120
    assert cache.soc.memory.used == 2 * cache.room * cache.token_bytes


@pytest.mark.parametrize(("kind", "error"), [("float32", 0.0), ("float16", 5e-4), ("int8", 5e-3), ("e4m3", 0.07)])
def test_what_is_stored_comes_back(kind: Any, error: float) -> None:
    rows = np.random.default_rng(0).standard_normal((2, 3, 18)).astype(np.float32)
    rows[1, 2] = 0
    cache = ArmLayerCache(new_soc(3), "c", 2, 18, kind, 5, True)
    cache.append(1, lambda head: [], lambda team: (rows[units_of(team), :1], rows[units_of(team), :1]))
    cache.append(2, lambda head: [], lambda team: (rows[units_of(team), 1:], rows[units_of(team), 1:]))
    for restored in cache.read([(cache.soc.mine[0], range(2))], 1, 1):
        assert restored is not None and np.abs(restored - rows).max() <= error * np.abs(rows).max()
        assert not restored[1, 2].any()


# ---- limits


@pytest.mark.mpi(ranks=[1])
def test_dram_is_limited(comm: Any) -> None:
    """Weights that do not fit; and, with two rooms at once, a cache that has to be moved."""
    with pytest.raises(
        LimitError, match=r"DRAM: 'layer 2: .*' asks for \d+ bytes, \d+ are in use, the limit is 400000"
    ):
        run_on_arm(comm, "llama", limits={"dram_bytes": 400_000}, **IDS)
    cache = ArmLayerCache(new_soc(payload=False, dram_bytes=3 * 4096 - 1), "c", 2, 64, "float16", 8, True)
    cache.append(8, lambda head: [], nothing)
    with pytest.raises(LimitError, match="'c of 16' asks for 8192 bytes, 4096 are in use") as refused:
        cache.append(1, lambda head: [], nothing)
    assert refused.value.exit_code == 3


def test_a_buffer_that_is_given_back_makes_room_to_the_last_byte() -> None:
    dram = Dram(find_arm_device("n2x8", dram_bytes=100))
    dram.take("a", 60)
    dram.give_back("a")
    dram.take("b", 100)
    assert dram.used == dram.peak == 100 and dram.fullest == {"b": 100}
    with pytest.raises(LimitError, match="'c' asks for 1 bytes, 100 are in use"):
        dram.take("c", 1)


@pytest.mark.mpi(ranks=[1])
def test_folders_of_codes_run_as_they_are(comm: Any, tmp_path: Path) -> None:
    """The codes of `meshrt quantize` are those that weights are rounded to when they are read."""
    source = find_model("llama-tiny")
    config, checkpoint = read_model(source)
    scheme = CodeScheme("rtn", 4, 64, False, 8)
    quantize(source, tmp_path / "w4", scheme, {}, 1, statistics(config, checkpoint))
    folder = {"model": str(tmp_path / "w4")}
    assert (logits_of(comm, tmp_path, **folder) == logits_of(comm, tmp_path)).all()
    with pytest.raises(UsageError, match="has codes already"):
        run_on_arm(comm, "llama", bits="8", **IDS | folder)


@pytest.mark.mpi(ranks=[1])
def test_layers_from_flash_change_no_bit(comm: Any, tmp_path: Path) -> None:
    """Room for two of them; each is read once a pass; who waits depends on how fast the flash is."""
    shapes = [(256, 128), (128, 128), (768, 128), (128, 384)]  # q, k and v; o; gate and up; down
    packed = sum(columns * (inner // 2 + inner // 64 * 4) for columns, inner in shapes)  # half a byte; scale and zero
    first = logits_of(comm, tmp_path)
    assert (logits_of(comm, tmp_path, flash=3) == first).all()
    runs = {
        rate: run_on_arm(comm, "llama", payload=False, flash=3, limits={"flash_bytes_per_second": rate}, **IDS)[
            "measured"
        ]
        for rate in (1e6, 1e15)
    }
    plain = run_on_arm(comm, "llama", payload=False, **IDS)["measured"]
    for rate, measured in runs.items():
        assert (
            measured["flash_bytes"] == 3 * 3 * packed
            and measured["memory_bytes"]["max"] == plain["memory_bytes"]["max"] - packed
        )
        assert (measured["flash_wait_seconds"] > 1e-3) == (rate == 1e6)
    assert runs[1e15]["flash_wait_seconds"] < 1e-9
    seconds = runs[1e6]["critical_path"]["seconds"]
    assert seconds >= 9 * packed / 1e6 and seconds < 9 * packed / 1e6 + plain["critical_path"]["seconds"]
