"""Products of whole numbers on the mesh: bits of models/integer.py, where what is added up is whole, on any mesh."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generations import generated, same_as_on_one_rank
from measure import one_core_each, own, whole
from random_models import CASES, case_seed, random_checkpoint
from runs import new_block, run_program

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.rings import interleaved_rings
from meshrt.mesh.presets import WSE2
from meshrt.models.config import Config, read_config
from meshrt.models.eightbits import quantize_rows
from meshrt.models.errors import ModelError
from meshrt.models.family import family_of
from meshrt.models.folders.checkpoint import open_checkpoint
from meshrt.models.integer import linear, projection
from meshrt.models.matrix import Matrix
from meshrt.models.quantize.folder import read_parts
from meshrt.models.quantize.model import quantize, read_model, statistics
from meshrt.models.quantize.sizes import CodeScheme
from meshrt.models.reference import forward, load_weights
from meshrt.programs.mesh.chunks import Chunks, cut_dimensions, plain
from meshrt.programs.mesh.codes.quantized import with_activations
from meshrt.programs.mesh.codes.whole import WholeCodes
from meshrt.programs.mesh.linear import Linear, along, product, second, shares
from meshrt.programs.mesh.systems import open_system
from meshrt.programs.mesh.weights import MeshMlp
from meshrt.programs.mesh.weights import load_weights as place_weights

PROMPT, NEW, TOKENS = [5, 93, 7, 30, 2, 77, 8, 60, 41, 12, 9], 4, 7
SCHEMES = {
    "row": CodeScheme("w4a8", 4, "row", False, 16, "row"),
    "symmetric row": CodeScheme("w4a8", 4, "row", True, 16, "row"),
    "eight": CodeScheme("w4a8", 8, "row", False, 16, "row"),
    "zeros": CodeScheme("rtn", 5, "row", False, 16, "row"),
    "64": CodeScheme("w4a8", 4, 64, False, 16, "row"),
    "32 block": CodeScheme("w4a8", 4, 32, True, 16, "block"),
}
EXACT = ["row", "symmetric row", "eight", "zeros"]
MESHES = [(1, 1), (3, 3), (4, 2), (1, 6), (3, 5), (8, 8)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model with odd sizes in all of these schemes."""
    place = tmp_path_factory.mktemp("models")
    base = random_checkpoint(CASES["gqa82"], place / "base", case_seed("gqa82"))
    return {kind: made(base, place / kind, kind) for kind in SCHEMES}


def made(base: Path, out: Path, kind: str) -> Path:
    config, checkpoint = read_model(base)
    quantize(base, out, SCHEMES[kind], {}, 1, statistics(config, checkpoint))
    return out


def matrices(config: Config, chunks: Chunks) -> list[tuple[list[tuple[Matrix, np.ndarray]], np.ndarray]]:
    """Of layer 0: what has one input, each with the chunks of its columns, and those of the input."""
    layer = family_of(config).layers[0]
    inner = plain(layer.mlp.down.rows, chunks.sides)
    return [
        ([(layer.q, chunks.queries), (layer.k, chunks.keys), (layer.v, chunks.keys)], chunks.embedding),
        ([(layer.o, chunks.embedding)], chunks.queries),
        ([(matrix, inner) for matrix in layer.mlp.inner], chunks.embedding),
        ([(layer.mlp.down, chunks.embedding)], inner),
    ]


def linears(weights: Any) -> list[Linear]:
    layer = weights.layers[0]
    assert isinstance(layer.mlp, MeshMlp)
    return [layer.qkv, layer.out, layer.mlp.up, layer.mlp.down]


def expected(folder: Path, x: np.ndarray, of: list[tuple[Matrix, np.ndarray]]) -> list[np.ndarray]:
    checkpoint = open_checkpoint(folder)
    return [
        linear(
            x,
            read_parts(checkpoint, matrix.name, matrix.form, matrix.columns, matrix.rows).codes,
            matrix.form.activations,
        )
        for matrix, _ in of
    ]


def cut(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """[.., K] -> [.., chunks, Kt], zero where a chunk has none."""
    return np.where(table >= 0, x[..., np.maximum(table, 0)], 0).astype(np.float32)


def uncut(tiles: np.ndarray, of: list[tuple[Matrix, np.ndarray]]) -> list[np.ndarray]:
    """[.., chunks, columns of all matrices] -> [.., columns] of each."""
    outs, at = [], 0
    for matrix, table in of:
        out = np.full((*tiles.shape[:-2], matrix.columns), np.nan, np.float32)
        out[..., table[table >= 0]] = tiles[..., at : at + table.shape[1]][..., table >= 0]
        outs.append(out)
        at += table.shape[1]
    return outs


def in_prefill(block: Block, folder: Path, x: dict[int, np.ndarray], phases: int = 2) -> list[np.ndarray]:
    """x W of all matrices of layer 0 by MeshGEMM; x by its columns."""
    config = read_config(folder, quantized=True)
    chunks = cut_dimensions(block, config, 1)
    weights = place_weights(block, config, chunks, open_checkpoint(folder), np.float32, range(1))
    outs, p, mesh = [], chunks.sides, block.mesh
    lt = -(-TOKENS // p)
    with ExitStack() as stack:
        rings = stack.enter_context(interleaved_rings(block))
        products, sums = open_system(stack, "waferllm", block, chunks, phases, rings)
        for (of, rows), w in zip(matrices(config, chunks), linears(weights), strict=True):
            assert isinstance(w.first, WholeCodes)
            padded = np.pad(x[of[0][0].rows], ((0, p * lt - TOKENS), (0, 0)))
            tiles = cut(padded, rows).reshape(mesh.height, chunks.rows, lt, mesh.width, chunks.columns, -1)
            tiles = own(block, tiles.transpose(0, 3, 1, 4, 2, 5))
            made = whole(block, product(block, products.gemm, tiles, w, sums.x))
            made = made.transpose(0, 2, 4, 1, 3, 5)  # [H, rows, Lt, W, columns, Nt]
            outs += uncut(made.reshape(p * lt, p, -1)[:TOKENS], of)
    return outs


def in_decode(block: Block, folder: Path, x: dict[int, np.ndarray], phases: int = 2) -> list[np.ndarray]:
    """The same of the first token, by each core's share and a sum along the axis that it is cut on."""
    config = read_config(folder, quantized=True)
    chunks = cut_dimensions(block, config, 1)
    weights = place_weights(block, config, chunks, open_checkpoint(folder), np.float32, range(1), turned=True)
    outs, mesh = [], block.mesh
    with ExitStack() as stack:
        _, sums = open_system(stack, "waferllm", block, chunks, phases, None)
        for (of, rows), w in zip(matrices(config, chunks), linears(weights), strict=True):
            turned, each = w.turned[0], cut(x[of[0][0].rows][0], rows)
            along, across = (mesh.width, mesh.height) if turned else (mesh.height, mesh.width)
            line = each.reshape(along, -1, each.shape[-1])
            tiles = np.broadcast_to(line if turned else line[:, None], (mesh.height, mesh.width, *line.shape[1:]))
            share, scale = shares(block, sums, own(block, tiles), w)
            made = whole(block, second(block, sums, w, (sums.x if turned else sums.y)(share), scale))
            lines = made if turned else made.swapaxes(0, 1)
            assert (lines == lines[:, :1]).all()  # the same at all cores of a line
            outs += uncut(lines[:, 0].reshape(across * lines.shape[2], -1), of)
    return outs


def inputs(config: Config, seed: int = 1) -> dict[int, np.ndarray]:
    random = np.random.default_rng(seed)
    return {matrix.rows: (random.standard_normal((TOKENS, matrix.rows)) * 3).astype(np.float32)
            for matrix in config.matrices().values()}  # fmt: skip


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.sample(8)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("kind", EXACT)
def test_products_have_the_bits_of_the_reference(
    kind: str, mesh: tuple[int, int], folders: dict[str, Path], comm: Any
) -> None:
    if comm.size > mesh[0] * mesh[1]:
        mesh = one_core_each(comm.size)
    _, x, want = reference(comm, mesh, folders[kind])
    for outs in (
        in_prefill(new_block(comm, mesh), folders[kind], x),
        in_decode(new_block(comm, mesh), folders[kind], x),
    ):
        for got, right in zip(outs, want, strict=True):
            np.testing.assert_array_equal(got, right if got.ndim == 2 else right[0])


def reference(comm: Any, mesh: tuple[int, int], folder: Path) -> tuple[Config, dict[int, np.ndarray], list[np.ndarray]]:
    """Inputs, and what models/integer.py makes of them by every matrix of layer 0 that `in_prefill` has."""
    config = read_config(folder, quantized=True)
    x = inputs(config)
    of = [group for group, _ in matrices(config, cut_dimensions(new_block(comm, mesh), config, 1))]
    return config, x, [right for group in of for right in expected(folder, x[group[0][0].rows], group)]


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.sample(2)
@pytest.mark.parametrize("phases", [1, 2, 3])
@pytest.mark.parametrize("device", ["ideal", "wse2"])
def test_any_tree_adds_up_to_the_same_bits(phases: int, device: str, folders: dict[str, Path], comm: Any) -> None:
    """In one phase or three, in groups that the costs of the device choose: float32 would differ in the last places."""
    block = new_block(comm, (8, 8), device)
    outs = in_decode(block, folders["row"], reference(comm, (8, 8), folders["row"])[1], phases)
    for got, right in zip(outs, reference(comm, (8, 8), folders["row"])[2], strict=True):
        np.testing.assert_array_equal(got, right[0])


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(3)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_groups_are_added_up_in_float32(mesh: tuple[int, int], folders: dict[str, Path], comm: Any) -> None:
    """One scale a token, two groups: whole numbers up to a group's part at a core."""
    _, x, want = reference(comm, mesh, folders["64"])
    for outs in (
        in_prefill(new_block(comm, mesh), folders["64"], x),
        in_decode(new_block(comm, mesh), folders["64"], x),
    ):
        for got, right in zip(outs, want, strict=True):
            near = right if got.ndim == 2 else right[0]
            assert np.abs(got - near).max() <= 2e-6 * np.abs(near).max()


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(3)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_blocks_have_scales_of_their_own_at_each_core(
    mesh: tuple[int, int], folders: dict[str, Path], comm: Any
) -> None:
    """What shares a scale is the part of a group that a core has: by that, from the weights and NumPy in float64."""
    folder, block = folders["32 block"], new_block(comm, mesh)
    config, x, _ = reference(comm, mesh, folder)
    checkpoint, cuts = open_checkpoint(folder), matrices(config, cut_dimensions(block, config, 1))
    want = []
    for of, rows in cuts:
        a = x[of[0][0].rows].astype(np.float64)
        for chunk in rows:
            for group in np.unique(chunk[chunk >= 0] // 32):
                shared = chunk[(chunk >= 0) & (chunk // 32 == group)]
                codes, scale, _ = quantize_rows(x[of[0][0].rows][:, shared], None)
                a[:, shared] = codes * scale.astype(np.float64)
        for matrix, _ in of:
            codes = read_parts(checkpoint, matrix.name, matrix.form, matrix.columns, matrix.rows).codes
            want.append(a @ codes.dequantized().T)
    for outs in (in_prefill(new_block(comm, mesh), folder, x), in_decode(block, folder, x)):
        for got, right in zip(outs, want, strict=True):
            near = right if got.ndim == 2 else right[0]
            assert np.abs(got - near).max() <= 1e-5 * np.abs(near).max()


WAYS: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((3, 3), {}),
    ((4, 2), {"allreduces": "published"}),
    ((4, 4), {"regions": 2, "decode_regions": 1, "head_groups": 2}),
    ((1, 2), {"kv": "concat"}),
]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(3)
@pytest.mark.parametrize("mesh, options", WAYS, ids=str)
@pytest.mark.parametrize("kind", ["row", "64", "32 block"])
def test_a_whole_model_is_near_that_of_whole_numbers(
    kind: str, mesh: tuple[int, int], options: Any, folders: dict[str, Path], tmp_path: Path, comm: Any
) -> None:
    """One rounding that goes the other way moves logits by per cents (docs/w4a8.md), so they are near, and no nearer;
    rebuilt weights, without activations in 8 bits, are another model.
    """
    model, far = folders[kind], {}
    for activations in (None, "none"):
        _, logits, every = generated(
            comm, model, mesh, tmp_path, PROMPT, NEW, dtype="float32", activations=activations, **options
        )
        config, weights = read_config(model, quantized=True), load_weights(model)
        right = forward(config, weights, every, project=projection(model, config))
        far[activations] = float(np.abs(logits - right).mean() / np.abs(right).mean())
    assert far[None] < 0.04
    if kind != "32 block":
        assert far[None] < far["none"]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(3)
@pytest.mark.parametrize("mesh, options", WAYS, ids=str)
@pytest.mark.parametrize("kind", ["row", "64", "32 block"])
def test_shapes_alone_give_the_same_counts(
    kind: str, mesh: tuple[int, int], options: Any, folders: dict[str, Path], comm: Any
) -> None:
    common: dict[str, Any] = {"model": str(folders[kind]), "prompt_tokens": 9, "max_new_tokens": 3, "ignore_eos": True}
    full, none = (run_program(comm, "llama", mesh, payload=payload, **common, **options) for payload in (True, False))
    assert full["phases"] == none["phases"] and full["measured"] == none["measured"]
    assert full["result"]["quantized"]["activations"] == SCHEMES[kind].activations


@pytest.mark.mpi(ranks=[2, 4])
def test_several_ranks_report_what_one_does(folders: dict[str, Path], comm: Any, tmp_path: Path) -> None:
    folder = Path(comm.bcast(str(folders["row"])))
    same_as_on_one_rank(comm, folder, (4, 4), tmp_path, prompt_ids="5,93,7,30,2", max_new_tokens=3)


@pytest.mark.mpi(ranks=[1])
def test_what_travels_for_a_scale(folders: dict[str, Path], comm: Any) -> None:
    """Decode on 4 x 4 cores, a layer: the norm's sum goes apart from the products, with the largest magnitude; before
    o_proj and down_proj that goes alone: four allreduces more, each of one number or two. S is one more with products.
    """
    common: dict[str, Any] = {"prompt_tokens": 4, "max_new_tokens": 2, "payload": False, "phases": 1, "head_groups": 1}
    own_, none = (
        next(
            phase
            for phase in run_program(
                comm, "llama", (4, 4), model=str(folders["row"]), activations=activations, **common
            )["phases"]
            if phase["name"] == "decode"
        )
        for activations in ("row", "none")
    )
    alone = run_program(comm, "allreduce", (4, 4), algorithm="ktree", phases=1, axis="x", size=1, payload=False)
    layers, hops = 2, alone["measured"]["hops"]
    assert own_["hops"] - none["hops"] == 4 * layers * hops
    # qkv, up: two numbers apart, S, and the sum of squares no more; o, down: one number, and S
    assert own_["link_bytes"]["total"] - none["link_bytes"]["total"] == 4 * hops * layers * (2 * 2 + 2 * 2)


@pytest.mark.mpi(ranks=[1])
def test_activations_go_round_as_bytes(folders: dict[str, Path], comm: Any) -> None:
    """Prefill on 4 x 4 cores, where 4 divides everything: tiles of A of one byte a number in place of four."""
    common: dict[str, Any] = {
        "prompt_tokens": 8, "max_new_tokens": 1, "payload": False, "model": str(folders["row"]), "head_groups": 1,
    }  # fmt: skip
    ours, none = (
        run_program(comm, "llama", (4, 4), activations=activations, **common)["phases"][0]
        for activations in ("row", "none")
    )
    config = read_config(folders["row"], quantized=True)
    layer = [matrix for name, matrix in config.matrices().items() if ".0." in name]
    inputs_ = {matrix.name.rsplit(".", 1)[1]: matrix.rows for matrix in layer}
    moved = sum(inputs_[name] for name in ("q_proj", "o_proj", "gate_proj", "down_proj")) // 4 * 2  # numbers of a tile
    alone = run_program(comm, "allreduce", (4, 4), algorithm="ktree", phases=2, axis="x", size=2, payload=False)
    shifts = sum(min(place, 4 - place) for place in range(4))
    hops_of_a = (shifts + 4 * 3) * (2 * 4 - 2)
    scales = 2 * 4 * alone["measured"]["link_bytes"]["total"]  # of two layers, four products: a number for each token
    assert none["link_bytes"]["total"] - ours["link_bytes"]["total"] == 2 * 3 * moved * hops_of_a - scales


@pytest.mark.mpi(ranks=[1])
def test_what_cannot_be_of_whole_numbers_is_refused(folders: dict[str, Path], tmp_path: Path, comm: Any) -> None:
    common: dict[str, Any] = {"prompt_tokens": 4, "max_new_tokens": 1, "payload": False}
    with pytest.raises(UsageError, match="--activations row is of a quantized model"):
        run_program(comm, "llama", (2, 2), activations="row", **common)
    with pytest.raises(UsageError, match="have no compensators"):
        run_program(comm, "llama", (2, 2), activations="row", bits=4, ranks="uniform-4", **common)
    with pytest.raises(UsageError, match="experts multiply rebuilt weights only"):
        run_program(comm, "llama", (2, 2), model="mixtral-tiny", bits=4, activations="block", **common)
    config = read_config(folders["eight"], quantized=True)
    wide = replace(config, intermediate_size=1 << 17)
    with pytest.raises(ModelError, match="may not fit into 32 bits"):
        with_activations(wide, None)


@pytest.mark.mpi(ranks=[1])
def test_rows_of_a_tile_come_group_by_group(folders: dict[str, Path], comm: Any) -> None:
    """So a core has the sums of one group at a time. Rows that fill a tile up are in no group."""
    for mesh in MESHES:
        config = read_config(folders["32 block"], quantized=True)
        for of, rows in matrices(config, cut_dimensions(new_block(comm, mesh), config)):
            for chunk in rows:
                groups = chunk[chunk >= 0] // of[0][0].form.group
                assert (np.diff(groups) >= 0).all()


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("kind", ["row", "64"])
def test_a_product_takes_the_time_of_its_instructions(kind: str, folders: dict[str, Path], comm: Any) -> None:
    """One core of a wse2, down_proj and one token: for 16 or 64 rows at a time a shift and an and, four numbers of 16
    bits at once; products of as many, with a column of ones, in one loop; scales and offsets of each group in float32.
    n numbers, w at once, take c (n / w + (w - 1) / w) cycles and one more, as they begin anywhere; c is 1 where one
    vector is read, of two 1.875 of 16 bits and 1.5 of 32.
    """
    config, block = read_config(folders[kind], quantized=True), new_block(comm, (1, 1), "wse2", core_memory=1 << 30)
    chunks = cut_dimensions(block, config, 1)
    weights = place_weights(block, config, chunks, open_checkpoint(folders[kind]), np.float32, range(1), turned=True)
    w, down = linears(weights)[-1], matrices(config, chunks)[-1][0][0][0]
    before = block.clock.last()[0]
    along(block, np.ones((1, 1, 1, down.rows), np.int8), w.first, w.turned[0])

    def instruction(numbers: int, width: int, c: float) -> float:
        return 1 + c * (numbers / width + (width - 1) / width)

    cycles, most = 0.0, 16 if kind == "row" else 64
    for low in range(0, down.rows, most):
        rows = min(most, down.rows - low)
        cycles += 2 * instruction(rows * down.columns, 4, 1)
        cycles += rows * instruction(down.columns + 1, 4, 1.875) + WSE2.loop_cycles
    if kind == "64":
        cycles += 2 * ceil(down.rows / 64) * instruction(down.columns, 1, 1.5)
    assert block.clock.last()[0] - before == cycles
