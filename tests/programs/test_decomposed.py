"""Models with matrices in two factors on the mesh: the logits of (x U) V, and bytes, products and sums on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decomposed import decompose
from generations import generated, goes_on_from_a_state, same_as_on_one_rank
from measure import meet, run_report
from random_models import CASES, case_seed, random_checkpoint
from runs import new_block, run_program

from meshrt.errors import LimitError, UsageError
from meshrt.models.catalogue import find_model
from meshrt.models.compress.ranks import aligned_ranks
from meshrt.models.config import Config, read_config
from meshrt.models.folders.checkpoint import open_checkpoint
from meshrt.models.matrix import Matrix
from meshrt.models.reference import forward, load_weights
from meshrt.programs.mesh.chunks import cut_dimensions
from meshrt.programs.mesh.weights import load_weights as place_weights

PROMPT, NEW = [5, 96, 7, 130, 2, 77, 8, 300, 41, 12, 9], 5
TINY = find_model("llama-tiny")
LAYERS = "model.layers."
SOME = {
    **{f"{LAYERS}0.self_attn.{name}_proj": rank for name, rank in (("q", 21), ("v", 64), ("o", 1))},
    **{f"{LAYERS}1.mlp.{name}_proj": rank for name, rank in (("gate", 50), ("up", 13))},
    **{f"{LAYERS}2.{name}_proj": rank for name, rank in (("mlp.up", 3), ("mlp.down", 77), ("self_attn.k", 7))},
    **{f"{LAYERS}3.mlp.{name}_proj": rank for name, rank in (("gate", 31), ("up", 90), ("down", 128))},
}


def all_ranks(config: Config) -> dict[str, int]:
    """Of every matrix, all of them different, few of which divide."""
    return {name: matrix.most_rank * 2 // 3 - at for at, (name, matrix) in enumerate(config.matrices().items())}


def mlp_ranks(config: Config, rank: int) -> dict[str, int]:
    return {name: rank for name in config.matrices() if ".mlp." in name}


KINDS = {"some": lambda _: SOME, "all": all_ranks, "mlp": lambda config: mlp_ranks(config, 80)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """llama-tiny with some, all, or the MLP's matrices in factors."""
    config, place = read_config(TINY), tmp_path_factory.mktemp("models")
    return {kind: decompose(TINY, place / kind, ranks(config)) for kind, ranks in KINDS.items()}


def multiplied_out(folder: Path) -> tuple[Config, dict[str, np.ndarray]]:
    """The model without factors: each W^T = (U V)^T in float64."""
    config, weights = read_config(folder), load_weights(folder)
    for matrix in config.matrices().values():
        if matrix.rank is not None:
            u, v = (weights.pop(factor.name + ".weight") for factor in matrix.factors())
            weights[matrix.name + ".weight"] = v @ u
    return read_config(TINY), weights


def check(comm: Any, model: Path, mesh: tuple[int, int], folder: Path, **options: Any) -> Any:
    """Every logit of prefill and decode, on one rank, against the reference; the report."""
    report, logits, ids = generated(comm, model, mesh, folder, PROMPT, NEW, dtype="float32", **options)
    for config, weights in ((read_config(model), load_weights(model)), multiplied_out(model)):
        expected = forward(config, weights, ids)
        assert np.abs(logits - expected).max() < 1e-3
        assert report["result"]["token_ids"] == expected[len(PROMPT) - 1 :].argmax(axis=1).tolist()
    return report


MESHES = [(1, 1), (2, 2), (3, 3), (4, 2), (3, 5), (8, 8), (1, 6)]
WAYS: list[tuple[tuple[int, int], dict[str, Any]]] = [
    *((mesh, {}) for mesh in MESHES),
    ((8, 8), {"head_groups": 4}),
    ((4, 4), {"regions": 3}),
    ((6, 6), {"decode_mesh": "4x4"}),
    ((4, 4), {"decode_mesh": "6x3", "regions": 2, "decode_regions": 1, "head_groups": 1}),
    ((4, 4), {"decode_mesh": "3x3", "decode_regions": 3, "head_groups": 1}),
    ((4, 4), {"allreduces": "published", "kv": "concat"}),
    ((3, 2), {"system": "t10"}),
    ((4, 4), {"system": "t10", "head_groups": 2}),
    ((3, 4), {"system": "ladder"}),
    ((4, 4), {"system": "ladder", "head_groups": 2, "kv": "roundrobin"}),
]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("mesh, options", WAYS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_the_factors(
    kind: str, mesh: tuple[int, int], options: Any, folders: dict[str, Path], tmp_path: Path, comm: Any
) -> None:
    check(comm, folders[kind], mesh, tmp_path, **options)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("mesh", [(4, 4), (3, 5)], ids=str)
def test_biases_come_after_the_second_factor(mesh: tuple[int, int], tmp_path: Path, comm: Any) -> None:
    """Of q, k and v in factors beside whole ones, and of an output."""
    case = CASES["bias"] | {"low_rank": {"ranks": {f"{LAYERS}0.self_attn.{letter}_proj": 11 for letter in "qo"}}}
    model = random_checkpoint(case, tmp_path / "model", case_seed("bias"))
    _, logits, ids = generated(comm, model, mesh, tmp_path, [5, 6, 7, 40, 2], 4)
    assert np.abs(logits - forward(read_config(model), load_weights(model), ids)).max() < 1e-3


@pytest.mark.mpi(ranks=[2, 3, 4, 6])
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "kind, mesh, options",
    [
        ("all", (6, 3), {"layers": 2}),
        ("mlp", (6, 4), {"layers": 2, "regions": 2}),
        ("some", (6, 3), {"layers": 2, "system": "t10"}),
        ("all", (6, 3), {"layers": 2, "system": "ladder"}),
        ("some", (6, 6), {"layers": 2, "decode_mesh": "4x2", "head_groups": 1}),
    ],
    ids=str,
)
def test_several_ranks_report_what_one_does(
    kind: str, mesh: tuple[int, int], options: Any, tmp_path: Path, comm: Any
) -> None:
    model = shared(comm, tmp_path, kind)
    same_as_on_one_rank(comm, model, mesh, model.parent, prompt_ids="5,96,7,130,2", max_new_tokens=3, **options)


def shared(comm: Any, folder: Path, kind: str) -> Path:
    """The model of that kind, on all ranks."""
    model = Path(comm.bcast(str(folder))) / "model"
    if comm.rank == 0:
        decompose(TINY, model, KINDS[kind](read_config(TINY)))
    meet(comm)
    return model


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("mesh, options", WAYS, ids=str)
@pytest.mark.parametrize("kind", ["some", "all"])
def test_shapes_alone_give_the_same_counts(
    kind: str, mesh: tuple[int, int], options: Any, folders: dict[str, Path], comm: Any
) -> None:
    common = {"model": str(folders[kind]), "prompt_tokens": 9, "max_new_tokens": 3, "ignore_eos": True, **options}
    full = run_program(comm, "llama", mesh, **common)
    none = run_program(comm, "llama", mesh, payload=False, **common)
    assert full["phases"] == none["phases"] and full["measured"] == none["measured"]


@pytest.mark.mpi(ranks=[1, 2])
def test_a_generation_goes_on_from_a_state(tmp_path: Path, comm: Any) -> None:
    model = shared(comm, tmp_path, "all")
    goes_on_from_a_state(comm, model, model.parent, 4, layers=2)


# ------------------------------------------------------------------------------------------------------- on paper


def decomposed(matrices: list[Matrix]) -> list[tuple[Matrix, int]]:
    return [(matrix, matrix.rank) for matrix in matrices if matrix.rank is not None]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("payload", [False, True])
def test_what_lies_in_memory_are_the_bytes_of_the_factors(
    payload: bool, turned: bool, folders: dict[str, Path], comm: Any
) -> None:
    """On 4 x 4 cores, ranks padded to multiples of 4; what is not in factors is as in the model without any."""
    bytes_of = {}
    for kind, folder in folders.items() | {("none", TINY)}:
        config, block = read_config(folder), new_block(comm, (4, 4), payload=payload)
        checkpoint = open_checkpoint(folder) if payload else None
        cut, layers = cut_dimensions(block, config), range(config.layers)
        weights = place_weights(block, config, cut, checkpoint, np.float32, layers, turned)
        bytes_of[kind] = block.memory.common
        del weights
    for kind, folder in folders.items():
        saved = 0
        for matrix, rank in decomposed([*read_config(folder).matrices().values()]):
            padded = -(-rank // 4) * 4
            saved += matrix.rows * matrix.columns - padded * (matrix.rows + matrix.columns)
        assert 16 * (bytes_of["none"] - bytes_of[kind]) == 4 * saved


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("system", ["waferllm", "t10", "ladder"])
def test_products_are_tokens_times_rank_times_in_and_out(system: str, folders: dict[str, Path], comm: Any) -> None:
    """8 tokens of prefill and 3 of decode on 4 x 4 cores, which divide all but the ranks."""
    common = {"prompt_tokens": 8, "max_new_tokens": 4, "ignore_eos": True, "payload": False, "system": system}
    whole = run_program(comm, "llama", (4, 4), model=str(TINY), **common)
    for folder in folders.values():
        report = run_program(comm, "llama", (4, 4), model=str(folder), **common)
        each = sum(
            matrix.rows * matrix.columns - -(-rank // 4) * 4 * (matrix.rows + matrix.columns)
            for matrix, rank in decomposed([*read_config(folder).matrices().values()])
        )
        for phase, tokens in (("prefill", 8), ("decode", 3)):
            macs = [
                next(of_phase["macs"] for of_phase in each_report["phases"] if of_phase["name"] == phase)
                for each_report in (whole, report)
            ]
            assert macs[0] - macs[1] == tokens * each


# What layers of these kinds send in decode beyond the six sums of a layer without factors, by what is in factors: the
# sums, and the numbers of the sums at a core, ranks being cut in 4.
SUMS = {
    ("q",): (2, lambda r: 2 * r["q"]),
    ("q", "k", "v"): (2, lambda r: 2 * (r["q"] + r["k"] + r["v"])),
    ("o",): (2, lambda r: 2 * r["o"]),
    ("gate", "up", "down"): (2, lambda r: r["gate"] + r["up"] + r["down"]),
    ("gate", "up"): (2, lambda r: 2 * (r["gate"] + r["up"])),
    ("up",): (2, lambda r: 2 * r["up"]),
    ("down",): (2, lambda r: 2 * r["down"]),
}


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("names", SUMS, ids=str)
def test_sums_of_decode_have_the_numbers_between_the_factors(names: tuple[str, ...], tmp_path: Path, comm: Any) -> None:
    """Every sum takes as many hops, and every packet of it has all its numbers.

    Of qkv and gate and up, the first product's sum has r in place of N; those in factors then r once more, where they
    have to go to the other axis, and N.
    """
    n, tokens = 4, 3
    ranks = {"q": 20, "k": 8, "v": 12, "o": 24, "gate": 40, "up": 16, "down": 4}
    config = read_config(TINY)
    chosen = {name: ranks[name.rpartition(".")[2].removesuffix("_proj")] for name in config.matrices()}
    chosen = {name: rank for name, rank in chosen.items() if name.rpartition(".")[2].removesuffix("_proj") in names}
    model = decompose(TINY, tmp_path / "model", chosen)
    common = {"prompt_tokens": 4, "max_new_tokens": tokens + 1, "ignore_eos": True, "phases": 1, "head_groups": 1}
    whole, factored = (
        next(phase for phase in report["phases"] if phase["name"] == "decode")
        for report in (
            run_program(comm, "llama", (n, n), model=str(folder), payload=False, **common) for folder in (TINY, model)
        )
    )
    more, numbers = SUMS[names]
    assert factored["stages"] - whole["stages"] == tokens * config.layers * more * n * (n - 1)
    hops, rest = divmod(factored["hops"] - whole["hops"], tokens * config.layers * more)  # of one sum
    assert rest == 0
    at_core = {name: rank // n for name, rank in ranks.items()}
    expected = 4 * hops * tokens * config.layers * numbers(at_core)
    assert factored["link_bytes"]["total"] - whole["link_bytes"]["total"] == expected


@pytest.mark.mpi(ranks=[1])
def test_a_model_that_has_no_room_as_a_whole_has_it_in_factors(tmp_path: Path, comm: Any) -> None:
    config = read_config(TINY)
    small = decompose(TINY, tmp_path / "model", mlp_ranks(config, 16))
    common = {"prompt_tokens": 4, "max_new_tokens": 2, "payload": False, "limits": {"core_memory": 80_000}}
    with pytest.raises(LimitError, match=r"layers\.\d+\.mlp"):
        run_program(comm, "llama", (4, 4), **common)
    report = run_program(comm, "llama", (4, 4), model=str(small), **common)
    assert report["measured"]["memory_bytes"]["max"] <= 80_000


@pytest.mark.mpi(ranks=[1])
def test_a_layer_stands_for_others_only_where_they_have_its_ranks(folders: dict[str, Path], comm: Any) -> None:
    common = {"prompt_tokens": 9, "max_new_tokens": 3, "payload": False}
    whole, part = (
        run_program(comm, "llama", (4, 4), model=str(folders["mlp"]), layers_run=run, **common) for run in (4, 1)
    )
    for key in ("messages", "hops", "stages", "macs", "link_bytes"):
        assert whole["measured"][key] == part["measured"][key], key
    for regions, unlike, run in ((1, 1, 0), (2, 1, 0)):
        with pytest.raises(UsageError, match=f"layer {unlike} has other ranks than layer {run}"):
            run_program(comm, "llama", (4, 4), model=str(folders["all"]), layers_run=1, regions=regions, **common)
    run_program(comm, "llama", (4, 4), model=str(folders["all"]), layers_run=1, regions=4, **common)


@pytest.mark.mpi(ranks=[1, 4])
def test_a_ratio_by_shape_counts_what_a_folder_of_these_ranks_does(comm: Any, folders: dict[str, Path]) -> None:
    """Equation 5 at 0.2, to a multiple of 16: (1 - 0.2) 128 384 / (128 + 384) = 76.8, so 80, the ranks of `mlp`."""
    assert set(aligned_ranks(read_config(TINY), "mlp", 0.2, 16).values()) == {80}
    reports = [
        run_report(comm, "llama", (6, 3), payload=False, prompt_tokens=11, max_new_tokens=4, layers=2, **given)
        for given in ({"ratio": 0.2, "block": 16}, {"model": str(folders["mlp"])}, {})
    ]
    by_ratio, of_folder, whole = (
        {name: report[name] for name in ("phases", "measured", "result")} for report in reports
    )
    assert by_ratio == of_folder
    assert by_ratio["phases"][-1]["macs"] < whole["phases"][-1]["macs"]
