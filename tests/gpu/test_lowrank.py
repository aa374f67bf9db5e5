"""Tensor-parallel schemes of decomposed models: numbers, bytes, heads, the same on any ranks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decomposed import decompose
from gpu_runs import logits_of, new_gpus, run_gpus, run_lowrank
from measure import on_one_rank
from random_models import BASE, CASES, random_checkpoint

from meshrt.errors import UsageError
from meshrt.models.catalogue import find_model
from meshrt.models.compress.model import compress
from meshrt.models.config import read_config
from meshrt.models.folders.checkpoint import expected_shapes
from meshrt.models.reference import forward, generate, load_weights

SCHEMES = ("dense", "base", "deinfer", "overlapped")
IDS = [5, 77, 31, 4, 90, 12, 8, 66, 41, 23, 3]
GQA = BASE | {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4}


def every_matrix(folder: Path, share: float) -> dict[str, int]:
    """Ranks of all matrices, all different, none a multiple of the GPUs."""
    matrices = read_config(folder).matrices().items()
    return {name: max(1, int(share * matrix.most_rank) - at % 3) for at, (name, matrix) in enumerate(matrices)}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llama-tiny, every matrix decomposed."""
    source = find_model("llama-tiny")
    return decompose(source, tmp_path_factory.mktemp("tiny") / "model", every_matrix(source, 0.7))


def random_model(folder: Path, config: dict[str, Any], share: float | None = 0.6) -> Path:
    """A random model of that configuration; decomposed, unless it is so already or share is None."""
    plain = random_checkpoint(config, folder / "plain", 7)
    if share is None or "low_rank" in config:
        return plain
    return decompose(plain, folder / "model", every_matrix(plain, share))


def reference(folder: Path, ids: list[int]) -> np.ndarray:
    """Logits in float64, of the product of the factors."""
    return forward(read_config(folder), load_weights(folder), ids)


def close(logits: np.ndarray, want: np.ndarray) -> None:
    assert logits.shape == want.shape
    assert np.abs(logits - want).max() < 1e-3


@pytest.mark.sample(2)
@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_every_scheme_gives_the_decomposed_models_logits(tiny: Path, tp: int, static: bool) -> None:
    want = reference(tiny, IDS)
    for scheme in SCHEMES:
        close(logits_of(new_gpus(tp, static=static), tiny, scheme, IDS, 5), want)
    close(logits_of(new_gpus(tp, static=static), tiny, "deinfer", IDS, 5, kv="lowrank"), want)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "tps"),
    [("mha", (2, 4)), ("gqa82", (2, 4, 8)), ("mqa", (2, 4)), ("headdim", (3,)), ("oddvocab", (3,)), ("tied", (4,)),
     ("bias", (2,)), ("llama3", (2,)), ("qwen2", (2,)), ("mistral", (4,)), ("lowrank", (1, 2, 4)),
     ("lowrankbias", (2, 4))],
)  # fmt: skip
def test_families_and_kinds_of_attention(name: str, tps: tuple[int, ...], tmp_path: Path) -> None:
    folder = random_model(tmp_path, CASES[name])
    want = reference(folder, IDS)
    for tp in tps:
        for scheme in SCHEMES:
            close(logits_of(new_gpus(tp), folder, scheme, IDS, 4), want)
        if "low_rank" not in CASES[name]:  # all K and V have latents
            close(logits_of(new_gpus(tp), folder, "deinfer", IDS, 4, kv="lowrank"), want)


def test_key_heads_that_do_not_come_out_even(tmp_path: Path) -> None:
    """6 query heads, 2 key heads, 3 GPUs: the second GPU's queries belong to both key heads."""
    config = BASE | {"num_attention_heads": 6, "num_key_value_heads": 2}
    folder = random_model(tmp_path, config)
    for scheme in SCHEMES:
        close(logits_of(new_gpus(3), folder, scheme, IDS, 4), reference(folder, IDS))
    close(logits_of(new_gpus(3), folder, "deinfer", IDS, 4, kv="lowrank"), reference(folder, IDS))


def test_a_model_that_is_not_decomposed(tmp_path: Path) -> None:
    folder = random_model(tmp_path, GQA, None)
    for scheme in SCHEMES:
        close(logits_of(new_gpus(4), folder, scheme, IDS, 4), reference(folder, IDS))


@pytest.mark.sample(3)
@pytest.mark.parametrize("part", ["self_attn", "mlp", "o_proj", "down_proj", "q_proj"])
def test_any_subset_of_matrices_may_be_decomposed(part: str, tmp_path: Path) -> None:
    plain = random_checkpoint(GQA, tmp_path / "plain", 3)
    ranks = {name: rank for name, rank in every_matrix(plain, 0.5).items() if part in name}
    folder = decompose(plain, tmp_path / "model", ranks)
    for scheme in SCHEMES:
        close(logits_of(new_gpus(4), folder, scheme, IDS, 4), reference(folder, IDS))


@pytest.mark.sample(2)
@pytest.mark.parametrize("method", ["svd", "plain-svd", "afm"])
def test_every_decomposition_with_ranks_of_its_own_for_each_matrix(method: Any, tmp_path: Path) -> None:
    """Ranks from a third of a matrix to all of it, others in each layer, in models as `meshrt compress` writes them."""
    base = random_checkpoint(GQA, tmp_path / "base", 5)
    matrices = read_config(base).matrices()
    ranks = {name: matrix.most_rank * (3 + at % 7) // 9 for at, (name, matrix) in enumerate(matrices.items())}
    compress(base, tmp_path / "model", ranks, method, [[*range(90)], [*range(0, 90, 7)]], {})
    want = reference(tmp_path / "model", IDS)
    for scheme, kv in (
        ("dense", "dense"), ("base", "dense"), ("deinfer", "dense"), ("deinfer", "lowrank"), ("deinfer", "fused"),
        ("overlapped", "fused"),
    ):  # fmt: skip
        close(logits_of(new_gpus(8, static=True), tmp_path / "model", scheme, IDS, 4, kv), want)


def test_greedy_text_is_the_references(tiny: Path) -> None:
    ids = [int(number) for number in np.load(Path(__file__).parents[1] / "golden" / "llama-tiny.npz")["ids"][:16]]
    want = generate(read_config(tiny), load_weights(tiny), ids, 12)
    arguments = {"prompt_ids": ",".join(map(str, ids)), "max_new_tokens": 12}
    for tp in (1, 4):
        for options in ({"scheme": "dense"}, {"scheme": "base"}, {}, {"kv": "lowrank"}):
            for static in (False, True):
                report = run_lowrank(new_gpus(tp, static=static), tiny, **arguments, **options)
                assert report["result"]["token_ids"] == want


# ---- what is sent


def sent_by_a_gpu(report: dict[str, Any], kind: str) -> int:
    return int(report["measured"]["collectives"].get(kind, {"bytes": {"max": 0}})["bytes"]["max"])


def shape_run(model: str, scheme: str, tp: int, **options: Any) -> dict[str, Any]:
    return run_lowrank(new_gpus(tp, payload=False), model, scheme=scheme, ignore_eos=True, **options)


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_bytes_per_token_and_layer_are_the_closed_form(tp: int, scheme: str) -> None:
    """A ring of n sends 2 (n-1)/n N of what it sums and (n-1)/n N of what it gathers, of N bytes, from each GPU.

    Per token and layer, in numbers of 2 bytes. dense: sums of h after O and down. base: a sum after every pair: h for
    Q and O, h_kv for K and V, m for gate and up, h for down. deinfer: gathers the latents of Q, K, V, gate and up, and
    sums those of O and down. LLaMA3-8B at a ratio of 1/2: h = 4096, h_kv = 1024, m = 14336, ranks 2048 and 512.
    """
    h, h_kv, m, layers, tokens, new = 4096, 1024, 14336, 3, 24, 9
    numbers = {  # (gathered, summed) of the attention, then of the MLP
        "dense": ((0, h), (0, h)),
        "base": ((0, 2 * h + 2 * h_kv), (0, 2 * m + h)),
        "deinfer": ((h // 2 + h_kv, h // 2), (h, h // 2)),
    }
    numbers["overlapped"] = numbers["deinfer"]
    gathered, summed = (sum(both) for both in zip(*numbers[scheme], strict=True))
    report = shape_run("llama3-8b", scheme, tp, ratio=0.5, layers=layers, prompt_tokens=tokens, max_new_tokens=new)
    each = 2 * (tp - 1) * (tokens + new - 1) * layers
    for part, (gather, total) in zip(("attention", "mlp"), numbers[scheme], strict=True):  # of all GPUs together
        assert report["measured"][f"{part}_link_bytes"] == each * (gather + 2 * total)
    assert sent_by_a_gpu(report, "reduce_sum") == each * 2 * summed // tp
    head = 8 * (tp - 1) * new  # the candidates for each new token: a logit and an id
    assert sent_by_a_gpu(report, "all_gather") == each * gathered // tp + head


@pytest.mark.sample(2)
@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("tp", [4, *(pytest.param(tp, marks=pytest.mark.all) for tp in (1, 2))])
def test_everything_is_counted_alike_with_numbers_and_by_shape(tp: int, tiny: Path, scheme: str, static: bool) -> None:
    """A model in bfloat16 is charged as one either way, though numbers are computed in float32: bytes, memory, time."""
    arguments = {"prompt_ids": "1,2,3,4,5,6,7", "max_new_tokens": 6, "ignore_eos": True, "block_size": 4}
    served = {"requests": 5, "prompt_tokens": "3:9", "output_tokens": "2:6", "rate": 2000.0, "block_size": 4}
    kinds: list[dict[str, Any]] = [{}, {"dtype": "float32"}, *([{"kv": "lowrank"}] if scheme == "deinfer" else [])]
    link_bytes = set()
    for options in kinds:
        for program, given in (("lowrank", arguments), ("serve", served)):
            full, none = (
                run_gpus(new_gpus(tp, payload=payload, static=static), tiny, program, scheme=scheme, **given | options)
                for payload in (True, False)
            )
            assert full["measured"] == none["measured"]
            assert full["phases"] == none["phases"]
            if program == "lowrank":
                link_bytes.add(full["measured"]["link_bytes"]["total"])
    assert len(link_bytes) == (2 if tp > 1 else 1)  # bfloat16 and float32: what is charged is the dtype


def test_deinfer_computes_every_head_once_and_base_on_every_gpu() -> None:
    """LLaMA3-8B has 32 query heads: tokens x layers x 32 of them."""
    once = (24 + 8) * 3 * 32
    for scheme, times in (("dense", 1), ("base", 8), ("deinfer", 1)):
        report = shape_run("llama3-8b", scheme, 8, ratio=0.5, layers=3, prompt_tokens=24, max_new_tokens=9)
        assert report["measured"]["attention_heads"] == times * once


@pytest.mark.parametrize(
    ("model", "tp", "static", "layers"),
    [("llama3-8b", 4, False, 6), ("llama3-8b", 4, True, 6), ("llama-tiny", 1, False, 4)],
)
def test_layers_that_are_counted_are_those_that_run(model: str, tp: int, static: bool, layers: int) -> None:
    """Two layers run and counted for the others, and all run: the same counts, and the same time up to rounding, where
    GPUs wait for each other and where they wait for launches."""
    measured = [
        run_lowrank(
            new_gpus(tp, payload=False, static=static), model, ratio=0.4, kv="lowrank", layers=layers,
            layers_run=run, prompt_tokens=70, max_new_tokens=5, ignore_eos=True,
        )["measured"]
        for run in (2, layers)
    ]  # fmt: skip
    two, every = measured
    assert two.pop("critical_path")["seconds"] == pytest.approx(every.pop("critical_path")["seconds"], rel=1e-9)
    for name in ("mfu", "compute_seconds", "collective_seconds", "energy"):
        assert two.pop(name) == pytest.approx(every.pop(name), rel=1e-9)
    assert two == every


# ---- ranks


@pytest.mark.mpi(ranks=[2, 4, 8])
def test_the_same_on_any_number_of_ranks(comm: Any, tmp_path: Path) -> None:
    """Eight GPUs, up to one a rank: the reference's logits; the same bits and reports as in one process; one text."""
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        random_model(folder, GQA)
    comm.Barrier()
    want = reference(folder / "model", IDS)

    def outcome(where: Any) -> list[tuple[bytes, str]]:
        runs, texts = [], []
        for scheme, kv in (("dense", "dense"), ("base", "dense"), ("deinfer", "dense"), ("deinfer", "lowrank")):
            logits = logits_of(new_gpus(8, where), folder / "model", scheme, IDS, 9, kv)
            close(logits, want)
            report = run_lowrank(
                new_gpus(8, where, static=True), folder / "model", scheme=scheme, kv=kv, prompt_ids="5,6,7",
                max_new_tokens=3, ignore_eos=True,
            )  # fmt: skip
            assert report.pop("host")["ranks"] == where.size
            runs.append((logits.tobytes(), json.dumps(report)))
            texts.append(report["result"]["token_ids"])
        assert all(text == texts[0] for text in texts)
        return runs

    assert outcome(comm) == on_one_rank(comm, outcome)


# ---- what is refused


def test_what_cannot_be_is_refused(tiny: Path, tmp_path: Path) -> None:
    cases: list[tuple[int, str, dict[str, Any]]] = [
        (3, "--tp is 3; the 8 heads", {}),
        (2, "--kv lowrank needs --scheme deinfer", {"kv": "lowrank", "scheme": "base"}),
        (2, "--ratio is for shapes", {"ratio": 0.4}),
        (2, "--layers is 9", {"layers": 9}),
        (2, "--layers-run is for shapes", {"layers_run": 1}),
        (2, "--block-size is 0", {"block_size": 0}),
        (2, "--max-new-tokens is 0", {"max_new_tokens": 0}),
        (2, "--max-batch is 0", {"max_batch": 0}),
        (2, "more than the", {"max_new_tokens": 10**6}),
    ]
    for tp, message, options in cases:
        with pytest.raises(UsageError, match=message):
            run_lowrank(new_gpus(tp), tiny, **options)
    plain = random_checkpoint(GQA, tmp_path / "plain", 1)
    with pytest.raises(UsageError, match="k_proj is not decomposed"):
        run_lowrank(new_gpus(2), plain, kv="lowrank", prompt_ids="1")
    with pytest.raises(UsageError, match="layer 1 has other ranks than layer 0"):
        run_lowrank(new_gpus(1, payload=False), tiny, layers_run=1)


def test_every_weight_is_counted_where_it_is(tmp_path: Path) -> None:
    """Four GPUs: the weights of the dense scheme add up to the model's; what every GPU has is counted four times."""
    folder = random_model(tmp_path, GQA, None)
    config, gpus = read_config(folder), new_gpus(4)
    run_lowrank(gpus, folder, scheme="dense", prompt_ids="1,2", max_new_tokens=2)
    shapes = expected_shapes(config)
    total = 4 * sum(int(np.prod(shape)) for shape in shapes.values())
    everywhere = 4 * sum(int(np.prod(shape)) for name, shape in shapes.items() if "norm" in name or "embed" in name)
    rotary = 4 * 2 * 4 * (config.head_dim // 2)  # of the 4 positions that there are
    counted = sum(gpu.memory.names["weights"] for gpu in gpus.mine)
    assert counted == total + 3 * everywhere + 4 * rotary
