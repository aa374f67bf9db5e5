"""Quantized models on GPUs: the reference's numbers, memory and traffic in closed form, every way of computing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_runs import logits_of, new_gpus, run_gpus, run_lowrank
from measure import meet, on_one_rank
from random_models import BASE, random_checkpoint
from test_lowrank_static import taken, warm_steps

from meshrt.errors import UsageError
from meshrt.gpu.codes import UNIT, GpuCodes, room_for
from meshrt.gpu.operations import coded_matmuls, int3_matmul
from meshrt.gpu.presets import find_gpu
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.folders.checkpoint import open_checkpoint
from meshrt.models.quantize.folder import read_dense
from meshrt.models.quantize.form import Quantized
from meshrt.models.quantize.model import quantize, read_model, statistics
from meshrt.models.quantize.sizes import CodeScheme
from meshrt.models.reference import forward, generate, load_weights
from meshrt.programs.gpu.coded import CodedCut, Hold

IDS = [5, 77, 31, 4, 90, 12]
# Inputs of 72, 40 and 132 numbers: no share of 2, 4 or 8 GPUs begins with a group of 32 or 64, or with a unit.
ODD = BASE | {"hidden_size": 72, "intermediate_size": 132, "num_attention_heads": 8, "num_key_value_heads": 2,
              "head_dim": 10, "attention_bias": True}  # fmt: skip
# method, bits, group, symmetric, compensator bits, share of the shorter side that is the rank
FORMS: dict[str, tuple[CodeScheme, float]] = {
    "rtn": (CodeScheme("rtn", 3, 64, False, 16), 0),
    "symmetric": (CodeScheme("rtn", 4, 32, True, 16), 0),
    "hqq": (CodeScheme("hqq", 3, 32, False, 16), 0),
    "two": (CodeScheme("rtn", 2, 32, False, 16), 0),
    "eight": (CodeScheme("rtn", 8, 96, False, 16), 0),
    "milo3": (CodeScheme("milo", 3, 64, False, 3), 0.2),
    "milo8": (CodeScheme("milo", 3, 32, False, 8), 0.3),
    "milo16": (CodeScheme("milo", 5, 64, False, 16), 0.15),
    "w4a8": (CodeScheme("w4a8", 4, 64, False, 16, "row", True), 0),
    "w4a8row": (CodeScheme("w4a8", 4, "row", False, 16, "row"), 0),
}


def quantized(source: Path, out: Path, scheme: CodeScheme, share: float) -> Path:
    """The model in a few bits, its matrices with ranks that are all different, some with none."""
    config, checkpoint = read_model(source)
    ranks = {
        name: rank for at, (name, matrix) in enumerate(config.matrices().items())
        if (rank := int(share * matrix.most_rank) - at % 3) > 0 and at % 5 != 4
    }  # fmt: skip
    texts = [[*range(90)]] if scheme.method == "gptq" else None
    quantize(source, out, scheme, ranks, 1, statistics(config, checkpoint), texts)
    return out


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    random_checkpoint(ODD, folder / "odd", 4)
    for name, (scheme, share) in FORMS.items():
        quantized(folder / "odd", folder / name, scheme, share)
    tiny = find_model("llama-tiny")
    quantized(tiny, folder / "tiny3", CodeScheme("milo", 3, 64, False, 3), 0.1)
    sizes = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 1}
    regular = random_checkpoint(BASE | sizes, folder / "regular", 4)
    quantized(regular, folder / "regular3", CodeScheme("milo", 3, 64, False, 3), 0.1)
    quantized(tiny, folder / "gptq", CodeScheme("gptq", 3, 64, False, 16), 0)
    return folder


def reference(folder: Path, ids: list[int]) -> np.ndarray:
    return forward(read_config(folder, quantized=True), load_weights(folder), ids)


def close(logits: np.ndarray, want: np.ndarray) -> None:
    assert logits.shape == want.shape
    assert np.abs(logits - want).max() < 1e-3


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [*FORMS, "tiny3", "gptq"])
def test_logits_are_those_of_the_dequantized_matrices(name: str, place: Path) -> None:
    want, number = reference(place / name, IDS), [*FORMS, "tiny3", "gptq"].index(name)
    ways = ((1, "dense", False), (2, "base", False), (4, "deinfer", True), (8, "dense", False))
    for tp, scheme, static in ways if name == "milo3" else (ways[number % 4], ways[(number + 2) % 4]):
        close(logits_of(new_gpus(tp, static=static), place / name, scheme, IDS, 4), want)


@pytest.mark.sample(3)
@pytest.mark.parametrize("options", [
    {"unfused": True}, {"compensators": "fused"}, {"compensator_memory": "float16"},
    {"unfused": True, "compensator_memory": "float16"}, {"compensators": "fused", "compensator_memory": "float16"},
])  # fmt: skip
def test_every_way_of_computing_gives_the_same_text(options: dict[str, Any], place: Path) -> None:
    config, ids = read_config(place / "milo3", quantized=True), [5, 77, 31]
    want = generate(config, load_weights(place / "milo3"), ids, 4)
    for static in (False, True):
        report = run_gpus(
            new_gpus(2, static=static), place / "milo3", "llama", prompt_ids="5,77,31", max_new_tokens=4, **options
        )
        assert report["result"]["token_ids"] == want


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", FORMS)
def test_a_part_of_a_matrix_is_that_of_the_whole_one_and_holds_what_it_touches(name: str, place: Path) -> None:
    """Any rows and columns, also rows that do not follow one another: its numbers, bytes in closed form."""
    config, checkpoint = read_config(place / name, quantized=True), open_checkpoint(place / name)
    rng = np.random.default_rng(1)
    for matrix in [*config.matrices().values()][:7]:
        form = config.quantized[matrix.name]
        whole = read_dense(checkpoint, matrix)
        for _ in range(4):
            first, last = sorted(rng.choice(matrix.rows + 1, 2, replace=False).tolist())
            begin, end = sorted(rng.choice(matrix.columns + 1, 2, replace=False).tolist())
            for rows in (slice(begin, end), rng.integers(0, matrix.columns, 3)):
                for half in (False, True):
                    gpu = new_gpus(1).mine[0]
                    cut = CodedCut(gpu, checkpoint, matrix, form, Hold("unfused", half))
                    part = cut.part(rows, slice(first, last))
                    eye = np.eye(last - first, dtype=np.float32)
                    numbers = coded_matmuls(gpu, [eye], [part], [None])[0].T
                    np.testing.assert_allclose(numbers, whole[rows, first:last], atol=2e-3 if half else 1e-5)
                    assert gpu.memory.names["codes"] == len(numbers) * codes_bytes(form, first, last)
                    factors = 0 if not form.rank else 2 * form.rank * sum(numbers.shape)
                    kept = gpu.memory.names.get("compensators", 0)
                    if half or form.compensator_bits == 16:
                        assert kept == factors
                    else:
                        assert bool(factors) == bool(kept)


def codes_bytes(form: Quantized, first: int, last: int) -> int:
    """Of the inputs first to last of one output: whole units of 32 codes, and scale and zero of every group."""
    units = -(-last // UNIT) - first // UNIT
    groups = -(-last // form.group) - first // form.group
    return units * 4 * form.bits + groups * (2 if form.symmetric else 4)


def random_codes(rows: int, columns: int, group: int, rng: np.random.Generator) -> GpuCodes:
    groups = -(-columns // group)
    packed = rng.integers(0, 256, (rows, groups * group * 3 // 8)).astype(np.uint8)
    scale, zero = (rng.random((rows, groups)).astype(np.float16) for _ in range(2))
    return GpuCodes(packed, scale, zero, 3, group, 0, 0, rows, columns)


def test_int3_matmul_is_one_kernel_with_its_own_bytes_and_operations() -> None:
    """m tokens, k inputs, n outputs, groups of 64, numbers of 2 bytes: 3 bits a weight, 32 a group, x and result."""
    m, k, n = 5, 192, 300
    gpu = new_gpus(1).mine[0]
    gpu.dtype = np.dtype(np.float16)
    codes = random_codes(n, k, 64, np.random.default_rng(0))
    x = np.random.default_rng(1).standard_normal((m, k)).astype(np.float32)
    product = int3_matmul(gpu, x, codes)
    dense = np.concatenate([block.astype(np.float64) for _, block in room_for(codes).blocks()])
    np.testing.assert_allclose(product, x @ dense.T, rtol=1e-4, atol=1e-3)
    assert gpu.counters.launches == 1 and gpu.counters.flops == 2 * m * k * n
    assert gpu.counters.memory_traffic == n * k * 3 // 8 + 4 * n * k // 64 + 2 * m * (k + n)
    assert gpu.counters.tally == {"dequantized_bytes": 2 * n * k}


def test_what_fewer_bits_can_gain() -> None:
    """16 tokens, Mixtral's MLP, an A100, against 4 bits in groups of 128 without zeros: 4.125 bits over 3.25, or
    over 3.5 with zeros, less what is read and written besides. With 2048 tokens operations take longer than bytes."""

    def seconds(bits: int, group: int, zero: bool, m: int) -> float:
        gpu = new_gpus(1, payload=False, device="a100-40g").mine[0]
        gpu.dtype = np.dtype(np.float16)
        for k, n in ((4096, 14336), (4096, 14336), (14336, 4096)):
            scale = gpu.shaped((n, k // group), np.float16)
            packed = gpu.shaped((n, k * bits // 8), np.uint8)
            int3_matmul(
                gpu, gpu.shaped((m, k)), GpuCodes(packed, scale, scale if zero else None, bits, group, 0, 0, n, k)
            )
        return gpu.counters.compute_seconds

    assert 0.95 * 4.125 / 3.25 < seconds(4, 128, False, 16) / seconds(3, 64, False, 16) < 4.125 / 3.25
    assert 0.95 * 4.125 / 3.5 < seconds(4, 128, False, 16) / seconds(3, 64, True, 16) < 4.125 / 3.5
    device = find_gpu("a100-40g")
    least = 2048 * 2 * 3 * 4096 * 14336 / (device.flops_share * device.flops)
    assert least < seconds(4, 128, False, 2048) < 1.001 * least
    assert least < seconds(3, 64, True, 2048) < 1.001 * least


@pytest.mark.parametrize("way", ["apart", "fused", "unfused"])
def test_what_a_product_with_a_compensator_costs(way: Any, place: Path) -> None:
    """codes C, factors F = Fu + Fv, X, Y and the low-rank L in bytes, the matrix D in float16. `apart` reads C X, then
    X Fv, then L Fu and Y, and writes Y, L, Y; `fused` reads C F X and writes Y; `unfused` writes D, reads and writes it
    with F, and reads it with X for Y."""
    config, checkpoint = read_config(place / "tiny3", quantized=True), open_checkpoint(place / "tiny3")
    matrix = config.matrices()["model.layers.0.mlp.up_proj"]
    form, m, k, n = config.quantized[matrix.name], 6, matrix.rows, matrix.columns
    for half in (False, True):
        gpu = new_gpus(1).mine[0]
        gpu.dtype = np.dtype(np.float16)
        coded = CodedCut(gpu, checkpoint, matrix, form, Hold(way, half)).part(slice(None), slice(None))
        x = np.random.default_rng(1).standard_normal((m, k)).astype(np.float32)
        product = coded_matmuls(gpu, [x], [coded], [None])[0]
        np.testing.assert_allclose(product, x @ read_dense(checkpoint, matrix).T, atol=2e-3)
        r, c, f = form.rank, gpu.memory.names["codes"], gpu.memory.names["compensators"]
        assert f == (2 * r * (k + n) if half else sum(-(-r * size // 64) * 26 for size in (k, n)))
        xs, ys, low, dense = 2 * m * k, 2 * m * n, 2 * m * r, 2 * k * n
        moved = {"apart": c + f + 2 * xs + 2 * low + 3 * ys, "fused": c + f + xs + ys,
                 "unfused": c + f + 4 * dense + xs + ys}  # fmt: skip
        flops = {"apart": 2 * m * k * n + 2 * m * r * (k + n), "fused": 2 * m * k * n + 2 * m * r * (k + n),
                 "unfused": 2 * k * n + 2 * k * n * r + 2 * m * k * n}  # fmt: skip
        assert gpu.counters.memory_traffic == moved[way]
        assert gpu.counters.flops == flops[way]
        assert gpu.counters.launches == {"apart": 3, "fused": 1, "unfused": 3}[way]


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [{"way": "apart"}, {"way": "fused"}, {"way": "unfused"}])
def test_a_replay_of_codes_allocates_nothing(options: Any, place: Path) -> None:
    peaks = []
    for sequences in (4, 24):
        steps, batch = warm_steps(place / "regular3", 1, "dense", "dense", sequences, hold=Hold(**options))
        (recorded,) = steps.plans.values()
        recorded.batch.load(batch)
        grown, peak = taken(recorded.plan.replay)
        assert grown < 512
        peaks.append(peak)
    assert max(peaks) < min(peaks) + 1024 < 40_000


@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
def test_counted_alike_with_numbers_and_by_shape(static: bool, place: Path) -> None:
    for name, tp, options in (
        ("milo3", 1, {"scheme": "base"}),
        ("milo3", 4, {"compensator_memory": "float16"}),
        ("milo16", 2, {"dtype": "float16", "compensators": "fused"}),
        ("symmetric", 8, {"unfused": True}),
    ):
        full, none = (
            run_lowrank(
                new_gpus(tp, payload=payload, static=static), place / name, prompt_ids="1,2,3,4,5",
                max_new_tokens=4, ignore_eos=True, **options,
            )
            for payload in (True, False)
        )  # fmt: skip
        assert full["measured"] == none["measured"]
        assert full["phases"] == none["phases"]


def test_a_model_quantized_by_shape_is_the_folder(place: Path) -> None:
    """`--bits 3 --ranks` of the float model counts what its quantized folder does."""
    arguments = {"prompt_ids": "1,2,3", "max_new_tokens": 3, "ignore_eos": True}
    plain = quantized(find_model("llama-tiny"), place / "plain3", CodeScheme("hqq", 3, 64, False, 16), 0)
    reports = [
        run_lowrank(new_gpus(4, payload=False), model, **arguments, **options)
        for model, options in ((plain, {}), ("llama-tiny", {"bits": 3}))
    ]
    assert reports[0]["measured"] == reports[1]["measured"] and reports[0]["phases"] == reports[1]["phases"]
    assert reports[0]["result"]["quantized"] == reports[1]["result"]["quantized"]
    ranked = run_lowrank(new_gpus(4, payload=False), "llama-tiny", bits=3, ranks="uniform-12", **arguments)
    sizes = ranked["result"]["quantized"]["bytes"]
    assert sizes["compensators"] == sum(
        sum(-(-12 * size // 64) * 26 for size in (matrix.rows, matrix.columns))
        for matrix in read_config(find_model("llama-tiny")).matrices().values()
    )
    assert 0 < ranked["measured"]["memory_bytes"]["of_the_fullest"]["compensators"] < sizes["compensators"]


@pytest.mark.mpi(ranks=[2, 4])
def test_the_same_on_any_number_of_ranks(comm: Any, tmp_path: Path) -> None:
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        random_checkpoint(ODD, folder / "plain", 4)
        quantized(folder / "plain", folder / "model", *FORMS["milo3"])
    meet(comm)

    def outcome(where: Any) -> tuple[bytes, str]:
        report = run_lowrank(
            new_gpus(8, where, static=True), folder / "model", prompt_ids="5,6,7", max_new_tokens=5, ignore_eos=True
        )
        assert report.pop("host")["ranks"] == where.size
        return logits_of(new_gpus(8, where), folder / "model", "dense", IDS, 5).tobytes(), json.dumps(report)

    assert outcome(comm) == on_one_rank(comm, outcome)


def refused() -> Iterator[tuple[str, dict[str, Any], str]]:
    yield "llama-tiny", {"unfused": True}, "--unfused is about the codes of a quantized model"
    yield "llama-tiny", {"compensators": "fused"}, "--compensators is about the codes"
    yield "llama-tiny", {"bits": 3}, "--bits is for shapes"
    yield "rtn", {"compensators": "fused"}, "have no compensators"
    yield "rtn", {"compensator_memory": "float16"}, "have no compensators"
    yield "milo3", {"compensators": "fused", "unfused": True}, "leave one of the two away"
    yield "milo16", {"compensator_memory": "float16"}, "in float16 as stored"
    yield "rtn", {"kv": "lowrank"}, "is not decomposed"
    shape = {"@payload": False}
    yield "rtn", shape | {"bits": 3}, "quantized already"
    yield "llama-tiny", shape | {"group": 64}, "--group goes with --bits"
    yield "llama-tiny", shape | {"symmetric": True}, "--symmetric goes with --bits"
    yield "llama-tiny", shape | {"ranks": "uniform-4"}, "--ranks goes with --bits"
    yield "llama-tiny", shape | {"bits": 3, "compensator_bits": "8"}, "goes with --ranks"
    yield "llama-tiny", shape | {"bits": 3, "group": 40}, "--group: 'group' 40"
    yield "llama-tiny", shape | {"bits": 9}, "--bits is 9"
    yield "llama-tiny", shape | {"bits": 3, "ratio": 0.4}, "leave --ratio away"


@pytest.mark.parametrize(("model", "options", "message"), [*refused()])
def test_what_cannot_be_is_refused(model: str, options: dict[str, Any], message: str, place: Path) -> None:
    given = dict(options)
    gpus = new_gpus(2, payload=given.pop("@payload", True))
    with pytest.raises(UsageError, match=message) as caught:
        run_lowrank(gpus, place / model if (place / model).exists() else model, prompt_ids="1", **given)
    assert "\n" not in str(caught.value)
