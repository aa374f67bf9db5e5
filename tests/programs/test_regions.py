"""Head groups, regions, a change of cores and the baseline systems: the same logits, and counts worked out on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import new_block, run_program
from test_llama_golden import check

from meshrt.errors import LimitError, UsageError
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.programs.mesh.chunks import cut_dimensions
from meshrt.programs.mesh.regions import arrange, share

WAYS: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((8, 8), {"head_groups": 2}),
    ((8, 8), {"head_groups": 4, "device": "wse2", "limits": {"core_memory": 10**6}}),
    ((6, 6), {"head_groups": 4}),
    ((4, 4), {"regions": 3}),
    ((3, 5), {"regions": 2}),
    ((4, 4), {"regions": 4, "device": "wse2", "limits": {"core_memory": 10**6}}),
    ((6, 6), {"decode_mesh": "4x4"}),
    ((4, 4), {"decode_mesh": "6x3", "regions": 2, "decode_regions": 1, "head_groups": 1}),
    ((4, 4), {"decode_mesh": "3x3", "decode_regions": 3}),
    ((8, 8), {"decode_mesh": "4x4", "head_groups": 2, "kv": "concat"}),
    ((4, 4), {"allreduces": "published"}),
    ((4, 4), {"kv": "concat"}),
    ((4, 4), {"kv": "roundrobin"}),
    ((3, 2), {"system": "t10"}),
    ((4, 4), {"system": "ladder", "kv": "concat"}),
    ((4, 4), {"system": "t10", "head_groups": 2}),
    ((4, 4), {"system": "t10-inferred", "head_groups": 2}),
    ((4, 4), {"system": "ladder-inferred", "head_groups": 2}),
]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(4)
@pytest.mark.parametrize("mesh, options", WAYS, ids=str)
def test_the_logits_are_those_of_transformers(mesh: tuple[int, int], options: Any, tmp_path: Path, comm: Any) -> None:
    check(comm, model_for(options), mesh, tmp_path, **options)


def model_for(options: dict[str, Any]) -> str:
    """One of two layers, if they are enough for these regions, and else of four."""
    return "mha" if max(options.get("regions", 1), options.get("decode_regions") or 1) <= 2 else "llama-tiny"


@pytest.mark.mpi(ranks=[4])
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "mesh, options",
    [
        ((4, 4), {"head_groups": 2, "regions": 2}),
        ((5, 5), {"decode_mesh": "4x3", "decode_regions": 2}),
        ((2, 2), {"regions": 2}),  # as many ranks as a region has cores
        ((4, 4), {"system": "t10", "kv": "concat"}),
        ((4, 4), {"system": "ladder"}),
    ],
    ids=str,
)
def test_several_ranks_report_what_one_does(
    mesh: tuple[int, int], options: dict[str, Any], tmp_path: Path, comm: Any
) -> None:
    from mpi4py import MPI

    many = check(comm, "mha", mesh, tmp_path, **options)
    if comm.rank == 0:
        bits = np.load(tmp_path / "logits.npy")
        alone = check(MPI.COMM_SELF, "mha", mesh, tmp_path, **options)
        assert (np.load(tmp_path / "logits.npy") == bits).all()
        for key in ("result", "measured", "phases"):
            assert many[key] == alone[key], key


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("mesh, options", WAYS, ids=str)
def test_shapes_alone_give_the_same_counts(mesh: tuple[int, int], options: Any, comm: Any) -> None:
    common = {"prompt_tokens": 9, "max_new_tokens": 4, "ignore_eos": True, **options}
    full = run_program(comm, "llama", mesh, **common)
    none = run_program(comm, "llama", mesh, payload=False, **common)
    assert full["phases"] == none["phases"]
    assert full["measured"] == none["measured"]


@pytest.mark.mpi(ranks=[1])
def test_a_token_crosses_into_the_next_region_and_back(comm: Any) -> None:
    """Two regions of W x H side by side, and the same model in one: what a decoded token costs more in hops.

    Every row of the second region gets its part of the token by one packet that passes all W cores; the token that is
    found goes W cores back to the first, there along the first row, W - 1 hops, and down W columns, H - 1 each.
    """
    width, height, tokens = 5, 3, 6
    common = {"prompt_tokens": 7, "max_new_tokens": tokens + 1, "ignore_eos": True, "payload": False}
    hops = {}
    for regions in (1, 2):
        report = run_program(comm, "llama", (width, height), regions=regions, **common)
        phase = next(phase for phase in report["phases"] if phase["name"] == "decode")
        hops[regions] = phase["hops"]
        assert phase["tokens"] == tokens
    shifts = hops[1] - hops_without_cache(comm, (width, height), common)
    back = width + (width - 1) + width * (height - 1)
    assert hops[2] - hops[1] == tokens * (width * height + back) + shifts


def hops_without_cache(comm: Any, mesh: tuple[int, int], common: dict[str, Any]) -> int:
    """Hops of decode with a policy that moves nothing: the rest is what each region's cache shifts for itself."""
    report = run_program(comm, "llama", mesh, kv="roundrobin", **common)
    return int(next(phase for phase in report["phases"] if phase["name"] == "decode")["hops"])


@pytest.mark.mpi(ranks=[1])
def test_ten_allreduces_a_layer_take_as_many_more_stages(comm: Any) -> None:
    """On N x N cores every allreduce adds N - 1 times on each line; six a layer become ten, and the head's gets one."""
    n, layers, tokens = 4, 4, 3
    stages = {}
    for way in ("fused", "published"):
        options = {"prompt_tokens": 4, "max_new_tokens": tokens + 1, "ignore_eos": True, "allreduces": way}
        report = run_program(comm, "llama", (n, n), payload=False, **options)
        stages[way] = next(phase for phase in report["phases"] if phase["name"] == "decode")["stages"]
    assert stages["published"] - stages["fused"] == tokens * (4 * layers + 1) * n * (n - 1)


@pytest.mark.mpi(ranks=[1])
def test_a_layer_that_is_counted_for_all_moves_what_all_would(comm: Any) -> None:
    options = {"model": "llama3-8b", "layers": 3, "prompt_tokens": 20, "max_new_tokens": 2, "payload": False}
    whole = run_program(comm, "llama", (12, 12), **options)
    part = run_program(comm, "llama", (12, 12), layers_run=1, **options)
    assert part["result"]["layers_run"] == 1 and whole["result"]["layers_run"] == 3
    for key in ("messages", "hops", "stages", "macs", "link_bytes", "max_hops"):
        assert whole["measured"][key] == part["measured"][key], key
    cycles = [report["measured"]["critical_path"]["cycles"] for report in (whole, part)]
    assert abs(cycles[0] - cycles[1]) < 0.02 * cycles[0]  # the clocks of the first layer are not quite the others'


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("system", ["waferllm", "t10", "ladder"])
def test_a_layer_moves_the_same_with_and_without_what_comes_before_and_after_it(comm: Any, system: str) -> None:
    """What a layer more adds is the same; embedding and head, which both of the whole runs have, are gone."""
    options = {"model": "llama3.2-1b", "prompt_tokens": 20, "max_new_tokens": 1, "payload": False, "system": system}
    runs = [
        run_program(comm, "llama", (6, 6), "wse2", {"core_memory": 10**9}, layers=layers, layers_only=only, **options)
        for only in (False, True)
        for layers in (1, 2)
    ]
    for key in ("messages", "hops", "macs"):
        one_layer, two_layers, bare_one_layer, bare_two_layers = (report["phases"][0][key] for report in runs)
        assert two_layers - one_layer == bare_two_layers - bare_one_layer, key
        assert bare_two_layers == 2 * bare_one_layer < two_layers, key
    cycles = [report["result"]["layer_cycles"]["prefill"] for report in runs]
    assert abs(cycles[3] - cycles[1]) < 0.02 * cycles[1]  # the clocks of the first layer begin together, or not


@pytest.mark.mpi(ranks=[1])
def test_what_leaves_numbers_out_needs_shapes(comm: Any) -> None:
    for payload, options, text in (
        (True, {"layers_only": True}, "--layers-only leave numbers out: add --payload none"),
        (False, {"layers_only": True, "context": 4}, "with --context there is no prefill"),
    ):
        with pytest.raises(UsageError, match=text):
            run_program(comm, "llama", (2, 2), payload=payload, **options)


def test_layers_are_shared_evenly_and_regions_lie_side_by_side(comm: Any = None) -> None:
    assert [list(part) for part in share(7, 3)] == [[0, 1, 2], [3, 4], [5, 6]]
    with pytest.raises(UsageError, match="8 regions for 7 layers"):
        share(7, 8)


@pytest.mark.mpi(ranks=[1])
def test_regions_have_to_fit_the_wafer(comm: Any) -> None:
    block = new_block(comm, (4, 4), "wse2")
    assert arrange(block.device, 360, 360, 4) == [(0, 0), (1, 0), (1, 1), (0, 1)]
    with pytest.raises(UsageError, match="room for 4"):
        arrange(block.device, 360, 360, 5)
    config = read_config(find_model("llama-tiny"))
    with pytest.raises(UsageError, match="do not divide"):
        cut_dimensions(block, config, 3)
    with pytest.raises(UsageError, match="square"):
        cut_dimensions(new_block(comm, (4, 2)), config, 2)


@pytest.mark.mpi(ranks=[1])
def test_head_groups_fit_the_cores_of_prefill_and_those_that_decode(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups leave least to a core of 6 x 6; 4 x 3 cores take one."""
    arguments: dict[str, Any] = {"prompt_tokens": 6, "max_new_tokens": 2, "decode_mesh": "4x3"}
    alone = run_program(comm, "llama", (6, 6), payload=False, **arguments | {"decode_mesh": None})
    apart = run_program(comm, "llama", (6, 6), payload=False, **arguments)
    assert (alone["result"]["head_groups"], apart["result"]["head_groups"]) == (2, 1)
    monkeypatch.setattr("meshrt.programs.mesh.engine.prefill", None)  # nothing is to be computed before
    with pytest.raises(UsageError, match="2 head groups need a square mesh, not 4 x 3"):
        run_program(comm, "llama", (6, 6), payload=False, **arguments | {"head_groups": 2})


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    "options, words",
    [
        ({"context": 5}, "--payload none"),
        ({"layers_run": 1}, "--payload none"),
        ({"layers": 9}, "has 4"),
        ({"model": "llama3-8b"}, "payload none"),
        ({"prompt_tokens": 0}, "--prompt-tokens is 0; it is 1 to 10000000"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_message(options: dict[str, Any], words: str, comm: Any) -> None:
    with pytest.raises(Exception, match=words) as raised:
        run_program(comm, "llama", (4, 4), **options)
    assert not isinstance(raised.value, LimitError) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name, billions", [("llama3-8b", 8.03), ("llama2-13b", 13.02), ("codellama-34b", 33.74), ("qwen2-72b", 72.71)]
)
def test_packaged_shapes_have_the_published_number_of_parameters(name: str, billions: float) -> None:
    c = read_config(find_model(name))
    heads = (c.heads + 2 * c.kv_heads) * c.head_dim
    layer = c.hidden_size * (heads + c.heads * c.head_dim + 3 * c.intermediate_size + 2) + heads * c.qkv_bias
    total = c.layers * layer + (2 - c.tie_word_embeddings) * c.vocab_size * c.hidden_size + c.hidden_size
    assert round(total / 1e9, 2) == billions


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("mesh, options", WAYS, ids=str)
def test_memory_that_nobody_wrote_is_not_read(
    mesh: tuple[int, int], options: Any, tmp_path: Path, comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cores without a head take part in every shift of the others: what their buffers happen to hold is no number."""
    like = np.empty_like

    def poisoned(array: np.ndarray, *args: Any, **options: Any) -> np.ndarray:
        made = like(array, *args, **options)
        made.fill(np.nan) if made.dtype.kind == "f" else None
        return made

    monkeypatch.setattr(np, "empty_like", poisoned)
    check(comm, model_for(options), mesh, tmp_path, **options)
