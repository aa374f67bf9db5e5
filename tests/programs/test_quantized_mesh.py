"""Quantized models on the mesh: the logits of the dequantized matrices, and bytes, numbers and sums on paper."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generations import generated, goes_on_from_a_state, same_as_on_one_rank
from measure import meet
from moe_models import random_moe
from random_models import CASES, case_seed, random_checkpoint
from runs import new_block, run_program
from safetensors.numpy import load_file, save_file

from meshrt.errors import LimitError, UsageError
from meshrt.mesh.presets import WSE2
from meshrt.models.catalogue import find_model
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import open_checkpoint
from meshrt.models.quantize.folder import read_dense
from meshrt.models.quantize.form import Quantized
from meshrt.models.quantize.model import quantize, read_model, statistics
from meshrt.models.quantize.sizes import CodeScheme
from meshrt.models.reference import forward, load_weights
from meshrt.programs.mesh.chunks import cut_dimensions, head_chunks, plain
from meshrt.programs.mesh.codes.packed import Packed
from meshrt.programs.mesh.codes.tileform import HEADER, SLICE, elements, find_groups, tile_form
from meshrt.programs.mesh.weights import MeshMlp, MeshWeights
from meshrt.programs.mesh.weights import load_weights as place_weights

PROMPT, NEW = [5, 96, 7, 130, 2, 77, 8, 300, 41, 12, 9], 5
TINY = find_model("llama-tiny")
SCHEMES = {
    "rtn3": CodeScheme("rtn", 3, 64, False, 16),
    "symmetric4": CodeScheme("rtn", 4, 32, True, 16),
    "five": CodeScheme("rtn", 5, 96, False, 16),
    "milo3": CodeScheme("milo", 3, 64, False, 3),
    "milo8": CodeScheme("milo", 3, 64, False, 8),
    "milo16": CodeScheme("milo", 2, 128, False, 16),
    "w4a8": CodeScheme("w4a8", 4, 64, False, 16, "row"),
    "w4a8row": CodeScheme("w4a8", 4, "row", True, 16, "row"),
}


def some_ranks(config: Config) -> dict[str, int]:
    """One for every matrix but the fourth: all different, one more than is rebuilt at a time, few of which divide."""
    names = [name for at, name in enumerate(config.matrices()) if at % 7 != 3]
    limits = config.matrices()
    return {name: min(limits[name].most_rank, 70 if at == 1 else 3 + 2 * at) for at, name in enumerate(names)}


def quantized(folder: Path, out: Path, kind: str) -> Path:
    scheme, (config, checkpoint) = SCHEMES[kind], read_model(folder)
    ranks = some_ranks(config) if scheme.method == "milo" else {}
    quantize(folder, out, scheme, ranks, 1, statistics(config, checkpoint))
    return out


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """llama-tiny in all of these schemes."""
    place = tmp_path_factory.mktemp("models")
    return {kind: quantized(TINY, place / kind, kind) for kind in SCHEMES}


def check(
    comm: Any, model: Path, mesh: tuple[int, int], folder: Path, ids: list[int] = PROMPT, bound: float = 1e-4,
    **options: Any,
) -> Any:  # fmt: skip
    """Every logit of prefill and decode, on one rank, against the reference on the dequantized matrices; the report.

    Weights are rebuilt; products of whole numbers are in test_whole_mesh.py.
    """
    report, logits, every = generated(
        comm, model, mesh, folder, ids, NEW, dtype="float32", activations="none", **options
    )
    assert np.abs(logits - forward(read_config(model, quantized=True), load_weights(model), every)).max() < bound
    return report


WAYS: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((3, 3), {}),
    ((4, 2), {}),
    ((8, 8), {}),
    ((1, 1), {}),
    ((1, 6), {}),
    ((3, 5), {}),
    ((8, 8), {"head_groups": 4}),
    ((4, 4), {"regions": 2, "decode_regions": 3}),
    ((4, 4), {"allreduces": "published", "kv": "concat"}),
]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("mesh, options", WAYS, ids=str)
@pytest.mark.parametrize("kind", SCHEMES)
def test_the_logits_are_those_of_the_dequantized_matrices(
    kind: str, mesh: tuple[int, int], options: Any, folders: dict[str, Path], tmp_path: Path, comm: Any
) -> None:
    check(comm, folders[kind], mesh, tmp_path, **options)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("mesh, options", WAYS, ids=str)
@pytest.mark.parametrize("kind", ["milo3", "milo16"])
def test_compensators_of_their_own_give_the_same_logits(
    kind: str, mesh: tuple[int, int], options: Any, folders: dict[str, Path], tmp_path: Path, comm: Any
) -> None:
    check(comm, folders[kind], mesh, tmp_path, compensators="apart", **options)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("mesh", [(2, 2), (3, 4)], ids=str)
@pytest.mark.parametrize("case", ["headdim", "oddvocab", "bias", "gqa82"])
def test_inputs_that_are_no_whole_groups(case: str, mesh: tuple[int, int], tmp_path: Path, comm: Any) -> None:
    """Fewer inputs than a group, heads of an odd number of pairs, biases."""
    base = random_checkpoint(CASES[case], tmp_path / "base", case_seed(case))
    check(comm, quantized(base, tmp_path / "model", "milo3"), mesh, tmp_path, [5, 6, 7, 40, 2, 3], 1e-3)


EXPERTS: list[tuple[str, dict[str, Any]]] = [
    ("rtn3", {}),
    ("milo3", {}),
    ("milo3", {"compensators": "apart"}),
    ("rtn3", {"dispatch": "ring"}),
    ("rtn3", {"experts": "regions", "expert_grid": "2x2"}),
    ("symmetric4", {"experts": "regions", "expert_grid": "1x2", "dispatch": "multicast"}),
]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind, options", EXPERTS, ids=str)
@pytest.mark.parametrize("case", ["mixtral", "deepseek", "qwen2-moe"])
def test_mixtures_of_experts(case: str, kind: str, options: Any, tmp_path: Path, comm: Any) -> None:
    model = quantized(random_moe(case, tmp_path / "base"), tmp_path / "model", kind)
    check(comm, model, (4, 4), tmp_path, [5, 6, 7, 40, 2, 3, 60], 1e-3, **options)


@pytest.mark.mpi(ranks=[2, 4, 6])
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "kind, mesh, options",
    [
        ("milo3", (6, 3), {}),
        ("symmetric4", (6, 6), {"head_groups": 2}),
        ("w4a8", (6, 6), {}),
        ("milo16", (6, 3), {"regions": 2, "decode_regions": 1, "compensators": "apart", "layers": 2}),
    ],
    ids=str,
)
def test_several_ranks_report_what_one_does(
    kind: str, mesh: tuple[int, int], options: Any, tmp_path: Path, comm: Any
) -> None:
    model = shared(comm, tmp_path, kind)
    given = {"prompt_ids": "5,96,7,130,2", "max_new_tokens": 2, "layers": 1} | options
    same_as_on_one_rank(comm, model, mesh, model.parent, **given)


def shared(comm: Any, folder: Path, kind: str) -> Path:
    """The model in that scheme, on all ranks."""
    model = Path(comm.bcast(str(folder))) / "model"
    if comm.rank == 0:
        quantized(TINY, model, kind)
    meet(comm)
    return model


SHAPES: list[tuple[str, tuple[int, int], dict[str, Any]]] = [
    *((kind, mesh, options) for kind in ("rtn3", "milo3") for mesh, options in WAYS),
    ("milo3", (4, 4), {"compensators": "apart"}),
]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind, mesh, options", SHAPES, ids=str)
def test_shapes_alone_give_the_same_counts(
    kind: str, mesh: tuple[int, int], options: Any, folders: dict[str, Path], comm: Any
) -> None:
    common: dict[str, Any] = {
        "model": str(folders[kind]),
        "prompt_tokens": 9,
        "max_new_tokens": 3,
        "ignore_eos": True,
        **options,
    }
    full = run_program(comm, "llama", mesh, **common)
    none = run_program(comm, "llama", mesh, payload=False, **common)
    assert full["phases"] == none["phases"] and full["measured"] == none["measured"]
    assert full["result"]["quantized"] == none["result"]["quantized"]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.all)])
def test_four_bits_fit_where_float16_does_not(both: bool, folders: dict[str, Path], tmp_path: Path, comm: Any) -> None:
    """6 x 6 cores of 48 KiB: all of llama-tiny; in W4A8 with an embedding and a head beside it."""
    with pytest.raises(LimitError, match="the limit is 49152"):
        run_program(comm, "llama", (6, 6), "wse2", prompt_ids="5,96,7", max_new_tokens=2)
    config, checkpoint = read_model(TINY)
    scheme = CodeScheme("w4a8", 4, 64, False, 16, "row", True)
    quantize(TINY, tmp_path / "model", scheme, {}, 1, statistics(config, checkpoint))
    common: dict[str, Any] = {"prompt_ids": ",".join(map(str, PROMPT)), "max_new_tokens": NEW, "ignore_eos": True}
    ways = ("none", 0.1), ("row", 1.0)  # in float16; and of whole numbers
    for model, few_ways in ((folders["w4a8"], ways[:1]), (tmp_path / "model", ways[1:])):
        for activations, bound in ways if both else few_ways:
            report = run_program(
                comm, "llama", (6, 6), "wse2", model=str(model), logits=str(tmp_path / "logits.npy"),
                activations=activations, **common,
            )  # fmt: skip
            assert report["measured"]["memory_bytes"]["max"] <= 49152
            every = [*PROMPT, *report["result"]["token_ids"][:-1]]
            expected = forward(read_config(model, quantized=True), load_weights(model), every)
            assert np.abs(np.load(tmp_path / "logits.npy") - expected).max() < bound


@pytest.mark.mpi(ranks=[1])
def test_whole_rows_by_shape_are_what_their_folder_is(folders: dict[str, Path], comm: Any) -> None:
    common: dict[str, Any] = {"prompt_tokens": 9, "max_new_tokens": 3, "payload": False}
    folder = run_program(comm, "llama", (4, 3), model=str(folders["w4a8row"]), **common)
    shape = run_program(comm, "llama", (4, 3), bits=4, group="row", symmetric=True, activations="row", **common)
    assert folder["measured"] == shape["measured"]
    assert folder["result"]["quantized"] == shape["result"]["quantized"]
    assert shape["result"]["quantized"]["group"] == shape["arguments"]["group"] == "row"
    with pytest.raises(UsageError, match="--group is 'rows'; it is a whole number"):
        run_program(comm, "llama", (4, 3), bits=4, group="rows", **common)


@pytest.mark.mpi(ranks=[1])
def test_quantized_by_shape_is_what_its_folder_is(tmp_path: Path, comm: Any) -> None:
    """--bits on the model itself, and the folder of the same scheme."""
    config, checkpoint = read_model(TINY)
    scheme, ranks = CodeScheme("milo", 4, 32, False, 8), dict.fromkeys(config.matrices(), 6)
    quantize(TINY, tmp_path / "model", scheme, ranks, 1, statistics(config, checkpoint))
    common: dict[str, Any] = {"prompt_tokens": 9, "max_new_tokens": 3, "payload": False}
    folder = run_program(comm, "llama", (4, 2), model=str(tmp_path / "model"), **common)
    shape = run_program(comm, "llama", (4, 2), bits=4, group=32, ranks="uniform-6", compensator_bits="8", **common)
    assert folder["phases"] == shape["phases"] and folder["measured"] == shape["measured"]
    assert folder["result"]["quantized"] == shape["result"]["quantized"]


@pytest.mark.mpi(ranks=[1, 2])
def test_a_generation_goes_on_from_a_state(tmp_path: Path, comm: Any) -> None:
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        quantized(random_checkpoint(CASES["gqa82"], folder / "plain", 3), folder / "model", "milo3")
    meet(comm)
    goes_on_from_a_state(comm, folder / "model", folder, 4, layers=1)


# ------------------------------------------------------------------------------------------------------- on paper


@pytest.mark.parametrize("group", [32, 64, 96])
@pytest.mark.parametrize("table", [plain(128, 3), plain(100, 7), plain(5, 8), head_chunks(4, 20, 1, 3, 3)], ids=str)
@pytest.mark.parametrize("letter", ["w", "u", "v"])
def test_a_tile_has_the_groups_that_its_elements_touch(letter: Any, table: np.ndarray, group: int) -> None:
    rank, inputs = 7, 130
    groups = find_groups(elements(letter, table, rank, inputs), group)
    most = 1
    for chunk, number, which in zip(table, groups.number, groups.which, strict=True):
        real = [int(place) for place in chunk if place >= 0]
        places = {
            "w": real, "u": [place * rank + j for j in range(rank) for place in real],
            "v": [j * inputs + place for place in real for j in range(rank)],
        }[letter]  # fmt: skip
        touched = sorted({place // group for place in places})
        most = max(most, len(touched))
        assert which[which >= 0].tolist() == touched
        kept = number[elements(letter, chunk[None], rank, inputs)[0] >= 0]
        assert [touched[at] for at in kept] == [place // group for place in places]
    assert groups.count == most


@pytest.mark.parametrize("shape", [(6, 20), (20, 6), (64, 3), (130, 5)], ids=str)
def test_bytes_of_a_tile(shape: tuple[int, int]) -> None:
    """On paper: whole words of codes for each slice of 64 rows, scale and zero of every group touched, factors."""
    kt, nt = shape
    form = tile_form(Quantized(3, 64, False, 0, 16), 7 * kt, plain(7 * kt, 7), plain(7 * nt, 7), HEADER)
    slices = [min(SLICE, kt - low) * nt for low in range(0, kt, SLICE)]
    groups = max(-(-(chunk + 1) * kt // 64) - chunk * kt // 64 for chunk in range(7))
    assert form.nbytes == sum(12 * -(-size // 32) for size in slices) + 4 * groups * nt
    half = tile_form(Quantized(3, 64, False, 9, 16), 7 * kt, plain(7 * kt, 7), plain(7 * nt, 7), HEADER)
    assert half.nbytes - form.nbytes == 2 * 9 * (kt + nt)


def packed_of(weights: MeshWeights) -> list[Packed]:
    tiles = []
    for layer in weights.layers:
        assert isinstance(layer.mlp, MeshMlp)
        for linear in (layer.qkv, layer.out, layer.mlp.up, layer.mlp.down):
            assert isinstance(linear.first, Packed)
            tiles.append(linear.first)
    return tiles


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("payload", [False, True])
def test_the_packed_bytes_are_all_that_is_held(
    payload: bool, turned: bool, folders: dict[str, Path], comm: Any
) -> None:
    """Beside what is not quantized: those of the tiles, which are uint8 arrays, and nothing else."""
    held = {}
    for kind, folder in {**folders, "none": TINY}.items():
        config, block = read_config(folder, quantized=True), new_block(comm, (4, 4), payload=payload)
        checkpoint = open_checkpoint(folder) if payload else None
        cut, layers = cut_dimensions(block, config), range(config.layers)
        weights = place_weights(block, config, cut, checkpoint, np.float32, layers, turned)
        held[kind] = block.memory.common
        if kind == "none":
            whole = 4 * sum(matrix.rows * matrix.columns for matrix in config.matrices().values()) // 16
            continue
        tiles = packed_of(weights)
        assert {tile.data.dtype for tile in tiles} == {np.dtype(np.uint8)}
        expected = sum(HEADER + sum(form.nbytes for form in tile.forms) for tile in tiles)
        assert expected == sum(tile.data.shape[-1] for tile in tiles)
        held[kind] -= expected
        del weights, tiles
    assert {nbytes + whole for kind, nbytes in held.items() if kind != "none"} == {held["none"]}


@pytest.mark.mpi(ranks=[1])
def test_tiles_on_the_links_are_the_packed_bytes(folders: dict[str, Path], comm: Any) -> None:
    """Prefill on 4 x 4 cores, where 4 divides everything: as many hops, and for each hop of a tile of B these bytes in
    place of float32's.
    """
    common: dict[str, Any] = {"prompt_tokens": 8, "max_new_tokens": 1, "payload": False, "dtype": "float32"}
    whole, in_codes = (
        run_program(comm, "llama", (4, 4), model=str(folder), **common)["phases"][0]
        for folder in (TINY, folders["rtn3"])
    )
    assert whole["hops"] == in_codes["hops"] and whole["messages"] == in_codes["messages"]
    block, config = new_block(comm, (4, 4), payload=False), read_config(folders["rtn3"], quantized=True)
    weights = place_weights(block, config, cut_dimensions(block, config), None, np.float32, range(config.layers))
    saved = sum(4 * tile.shape[-2] * tile.shape[-1] - tile.data.shape[-1] for tile in packed_of(weights))
    moved, rest = divmod(whole["link_bytes"]["total"] - in_codes["link_bytes"]["total"], saved)
    assert rest == 0 and moved == hops_of_b(4)


def hops_of_b(n: int) -> int:
    """Of all tiles of B in one product on n x n cores: aligning, each column by its place the short way, then n - 1
    shifts, in each of which a ring's tiles move two hops but for two of them, which move one.
    """
    shifts = sum(min(place, n - place) for place in range(n))
    return (shifts + n * (n - 1)) * (2 * n - 2)


@pytest.mark.mpi(ranks=[1])
def test_numbers_that_are_rebuilt(folders: dict[str, Path], comm: Any) -> None:
    """In decode every weight once a token; in prefill every tile at each of P steps of P x P cores: P times as many."""
    config = read_config(TINY)
    weights = sum(matrix.rows * matrix.columns for matrix in config.matrices().values())
    report = run_program(
        comm, "llama", (4, 4), model=str(folders["rtn3"]), prompt_tokens=8, max_new_tokens=4, payload=False
    )  # fmt: skip
    by_phase = {phase["name"]: phase.get("rebuilt") for phase in report["phases"]}
    assert by_phase["decode"] == 3 * weights and by_phase["prefill"] == 4 * weights
    assert by_phase["re-placement"] is None and report["measured"]["rebuilt"] == 7 * weights
    assert "rebuilt" not in run_program(comm, "llama", (4, 4), prompt_tokens=8, payload=False)["measured"]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("mesh", [(4, 4), (3, 3)], ids=str)
def test_what_compensators_of_their_own_send(mesh: tuple[int, int], folders: dict[str, Path], comm: Any) -> None:
    """No sum more: r numbers more in the sums that there are, all of them at every core of a line."""
    common: dict[str, Any] = {
        "model": str(folders["milo3"]), "prompt_tokens": 4, "max_new_tokens": 4, "payload": False, "phases": 1,
        "head_groups": 1,
    }  # fmt: skip
    fused, apart = (
        next(phase for phase in report["phases"] if phase["name"] == "decode")
        for report in (run_program(comm, "llama", mesh, compensators=way, **common) for way in ("fused", "apart"))
    )
    assert fused["messages"] == apart["messages"] and fused["hops"] == apart["hops"]
    alone = run_program(comm, "allreduce", mesh, algorithm="ktree", phases=1, axis="x", size=1, payload=False)
    more = apart["link_bytes"]["total"] - fused["link_bytes"]["total"]
    assert more == 4 * 3 * alone["measured"]["hops"] * sum(some_ranks(read_config(TINY)).values())


@pytest.mark.mpi(ranks=[1])
def test_unpacking_takes_the_time_of_its_instructions(folders: dict[str, Path], comm: Any) -> None:
    """One core, one token by shape: what 3 bits take longer than whole numbers are the instructions of packed.py, and
    that a product is one for each 64 rows, with a loop of its own.

    Numbers of 16 bits go four at once: n of one vector take n / 4 + 3 / 4 cycles, as they begin anywhere, and 1.875
    times that where an or reads two vectors, in banks of which only some are free.
    """
    common: dict[str, Any] = {"context": 1, "max_new_tokens": 2, "payload": False, "dtype": "float32"}
    limits = {"core_memory": 1 << 30}
    whole, in_codes = (
        run_program(comm, "llama", (1, 1), "wse2", limits, model=str(model), **common)
        for model in (TINY, folders["rtn3"])
    )
    cycles = 0.0
    for name, matrix in read_config(TINY).matrices().items():
        if not name.endswith(("k_proj", "v_proj", "up_proj")):  # which are in one product with q and gate
            cycles += WSE2.loop_cycles * (ceil(matrix.rows / 64) - 1)
        for low in range(0, matrix.rows, 64):
            rows = min(64, matrix.rows - low)
            halves, rest = (n / 4 + 3 / 4 for n in (rows * matrix.columns, ceil(rows * matrix.columns / 16)))
            cycles += 4 * (1 + halves) + 5 * (1 + rest) + 2 * (1 + 1.875 * rest) + 2 * rows * (1 + 1.5 * matrix.columns)
    steps = in_codes["measured"]["rebuilt"] // sum(
        matrix.rows * matrix.columns for matrix in read_config(TINY).matrices().values()
    )
    more = in_codes["measured"]["critical_path"]["cycles"] - whole["measured"]["critical_path"]["cycles"]
    assert steps in (1, 2) and more == steps * cycles


@pytest.mark.mpi(ranks=[1])
def test_a_model_that_has_no_room_has_it_in_three_bits(comm: Any) -> None:
    common: dict[str, Any] = {
        "prompt_tokens": 4,
        "max_new_tokens": 2,
        "payload": False,
        "limits": {"core_memory": 80_000},
    }
    with pytest.raises(LimitError, match=r"layers\.\d+\."):
        run_program(comm, "llama", (4, 4), **common)
    report = run_program(comm, "llama", (4, 4), bits=3, **common)
    assert report["measured"]["memory_bytes"]["max"] <= 80_000
    with pytest.raises(LimitError, match=r"codes.*use a larger --mesh"):
        run_program(comm, "llama", (4, 4), bits=3, **{**common, "limits": {"core_memory": 20_000}})


@pytest.mark.mpi(ranks=[1])
def test_a_tile_that_is_another_gives_other_numbers(folders: dict[str, Path], tmp_path: Path, comm: Any) -> None:
    """The numbers in front of a tile decide which of its groups a row is in: with others the logits are wrong."""
    n = 5
    block, config = new_block(comm, (n, n)), read_config(folders["rtn3"], quantized=True)
    checkpoint = open_checkpoint(folders["rtn3"])
    weights = place_weights(block, config, cut_dimensions(block, config), checkpoint, np.float32, range(1))
    *_, down = packed_of(weights)
    x = np.random.default_rng(3).standard_normal((n, n, 1, 1, 1, down.shape[-2])).astype(np.float32)

    x[:, :, 0, 0, 0][np.broadcast_to((plain(384, n) < 0)[:, None], (n, n, down.shape[-2]))] = 0

    def product(tiles: Packed) -> np.ndarray:
        return tiles.multiply(block, x, np.zeros((n, n, 1, 1, 1, down.shape[-1]), np.float32))[:, :, 0, 0, 0]

    name = "model.layers.0.mlp.down_proj"
    expected = read_dense(checkpoint, config.matrices()[name]).T
    at = plain(expected.shape[0], n)
    columns = plain(expected.shape[1], n)
    products = product(down)
    for y in range(n):
        for column in range(n):
            real, out = at[y] >= 0, columns[column] >= 0
            tile = expected[np.ix_(at[y][real], columns[column][out])]
            assert np.abs(products[y, column][out] - x[y, column, 0, 0, 0][real] @ tile).max() < 1e-4
    swapped = down.data.copy()
    swapped[0, 0, 0, 0, :2], swapped[1, 0, 0, 0, :2] = down.data[1, 0, 0, 0, :2], down.data[0, 0, 0, 0, :2]
    assert np.abs(product(down.moved(swapped)) - products).max() > 1e-2


# -------------------------------------------------------------------------------------------------------- refused


@pytest.mark.mpi(ranks=[1])
def test_what_cannot_be_is_refused(folders: dict[str, Path], tmp_path: Path, comm: Any) -> None:
    common: dict[str, Any] = {"prompt_tokens": 5, "max_new_tokens": 3, "payload": False}
    milo3, rtn3 = {"model": str(folders["milo3"])}, {"model": str(folders["rtn3"])}
    for given, says in (
        (milo3 | {"system": "t10"}, "moves whole numbers only"),
        (milo3 | {"decode_mesh": "2x2"}, "not cut anew"),
        (milo3 | {"bits": 3}, "quantized already"),
        (rtn3 | {"compensators": "apart"}, "no compensators"),
        ({"compensators": "apart"}, "no compensators"),
        ({"group": 64}, "--group goes with --bits"),
        ({"symmetric": True}, "--symmetric goes with --bits"),
        ({"ranks": "uniform-4"}, "--ranks goes with --bits"),
        ({"bits": 3, "compensator_bits": "8"}, "--compensator-bits goes with --ranks"),
        ({"bits": 3, "group": 40}, "--group: 'group' 40"),
    ):
        with pytest.raises(UsageError, match=says):
            run_program(comm, "llama", (4, 4), **common, **given)
    with pytest.raises(UsageError, match="--bits is for shapes"):
        run_program(comm, "llama", (4, 4), bits=3, prompt_ids="1,2")


@pytest.mark.mpi(ranks=[1])
def test_experts_of_other_ranks_do_not_lie_in_one_round_of_regions(tmp_path: Path, comm: Any) -> None:
    model = quantized(random_moe("mixtral", tmp_path / "base"), tmp_path / "model", "milo3")
    common: dict[str, Any] = {
        "model": str(model),
        "prompt_tokens": 5,
        "max_new_tokens": 3,
        "payload": False,
        "experts": "regions",
    }
    with pytest.raises(UsageError, match="compensator of another rank"):
        run_program(comm, "llama", (4, 4), **common)
    with pytest.raises(UsageError, match="--experts split"):
        run_program(comm, "llama", (4, 4), compensators="apart", **common)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("wrong", ["nan", "dtype", "more"])
def test_folders_that_are_not_right(wrong: str, folders: dict[str, Path], tmp_path: Path, comm: Any) -> None:
    source, name = folders["milo3"], "model.layers.1.mlp.up_proj"
    tensors = load_file(source / "model.safetensors")
    if wrong == "nan":
        tensors[f"{name}.scale"][3, 0] = np.nan
    elif wrong == "dtype":
        tensors[f"{name}.zero"] = tensors[f"{name}.zero"].astype(np.float32)
    else:
        tensors[f"{name}.weight"] = np.zeros((2, 2), np.float16)
    model = tmp_path / "model"
    model.mkdir()
    data = json.loads((source / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(data))
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=name):
        run_program(comm, "llama", (2, 2), model=str(model), prompt_ids="1,2,3", max_new_tokens=1)
