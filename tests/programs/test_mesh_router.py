"""The router's table cut over the columns of the mesh too: the same logits, less memory, one allreduce more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from generations import same_as_on_one_rank
from measure import meet
from moe_models import CASES, IDS, random_moe
from random_models import random_checkpoint
from runs import run_program
from test_mesh_experts import PROMPT, REGIONS, check

from meshrt.errors import UsageError

CUT = {"router": "cut"}
# A table with fewer columns than a line has cores, and with more; with a shared expert's gate and without; other
# systems, other cores in decode, several regions of layers.
WAYS: list[tuple[str, tuple[int, int], dict[str, Any]]] = [
    ("mixtral", (4, 4), {}),
    ("qwen2-moe", (3, 3), {"dispatch": "dense"}),  # 7 experts and a gate: 8 columns, 3 a core
    ("qwen2-moe", (8, 8), REGIONS),
    ("qwen3-moe", (4, 2), REGIONS | {"dispatch": "crossbar"}),
    ("deepseek", (3, 5), {"dispatch": "ring", "capacity": 2}),
    ("olmoe", (2, 3), {"allreduces": "published"}),
    ("qwen2-moe", (4, 4), {"decode_mesh": "6x3"}),
    ("olmoe", (4, 4), {"regions": 2, "decode_mesh": "3x3", "decode_regions": 1}),
    ("qwen2-moe-renormalised", (2, 3), {"system": "t10"}),
    ("mixtral", (3, 2), {"system": "ladder", "dispatch": "dense"}),
    ("mixtral", (1, 1), {}),
]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("name, mesh, options", WAYS, ids=str)
def test_a_table_that_is_cut_gives_the_references_logits(
    name: str, mesh: tuple[int, int], options: dict[str, Any], tmp_path: Path, comm: Any
) -> None:
    said = check(comm, random_moe(name, tmp_path / name), mesh, IDS[name][:PROMPT], tmp_path, **options, **CUT)
    assert said["result"]["experts"]["router"] == "cut"


@pytest.mark.mpi(ranks=[2, 3, 6])
@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [{}, REGIONS | {"expert_grid": "3x2"}, {"decode_mesh": "6x2"}], ids=str)
def test_so_it_does_on_several_ranks(options: dict[str, Any], tmp_path: Path, comm: Any) -> None:
    model = Path(comm.bcast(str(tmp_path))) / "model"
    if comm.rank == 0:
        random_moe("qwen2-moe", model)
    meet(comm)
    same_as_on_one_rank(
        comm, model, (6, 4), model.parent, prompt_ids="5,6,7,60,2", max_new_tokens=2, layers=1, **options, **CUT
    )


@pytest.mark.mpi(ranks=[1])
def test_it_takes_less_memory_and_one_allreduce_more(tmp_path: Path, comm: Any) -> None:
    """Of sizes that divide, on N x N cores: two tables of E/N n numbers a core and layer, or one of E/N n/N. In decode
    a sum along x of n numbers, and of 1 + n/N along y in place of 1 + n: N - 1 additions on each of N lines."""
    e, n, experts, tokens = 32, 4, 8, 3
    sizes = {"hidden_size": e, "intermediate_size": 16, "num_local_experts": experts, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "num_experts_per_tok": 2}
    model = str(random_checkpoint(CASES["mixtral"] | sizes | heads, tmp_path / "m", 9))
    measured = {
        (router, layers): run_program(
            comm, "llama", (n, n), model=model, layers=layers, context=4, max_new_tokens=tokens + 1, ignore_eos=True,
            payload=False, phases=1, kv="roundrobin", router=router, dtype="float32",
        )["measured"]
        for router in ("whole", "cut")
        for layers in (1, 2)
    }  # fmt: skip

    def more(key: str) -> int:
        """Of a layer, cut against whole."""
        whole, cut = (measured[router, 2][key] - measured[router, 1][key] for router in ("whole", "cut"))
        return int(cut - whole)

    assert more("stages") == tokens * n * (n - 1)
    each = {
        router: measured[router, 2]["memory_bytes"]["max"] - measured[router, 1]["memory_bytes"]["max"]
        for router in ("whole", "cut")
    }
    assert each["whole"] - each["cut"] == 4 * (2 * e // n * experts - e // n * experts // n)
    # A core multiplies E/N x n/N in place of E/N x n.
    assert more("macs") == tokens * (e * experts - n * e * experts)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [{}, REGIONS], ids=str)
def test_by_shape_it_counts_what_it_does_with_numbers(options: dict[str, Any], tmp_path: Path, comm: Any) -> None:
    """k = n: every token takes all experts, drawn or chosen."""
    model = str(random_moe("mixtral-two", tmp_path / "m"))
    full, none = (
        run_program(
            comm, "llama", (4, 4), "wse2", {"core_memory": 10**7}, payload=payload, model=model, prompt_tokens=9,
            max_new_tokens=3, ignore_eos=True, **options, **CUT,
        )
        for payload in (True, False)
    )  # fmt: skip
    assert full["phases"] == none["phases"] and full["measured"] == none["measured"]
    assert full["result"]["experts"] == none["result"]["experts"]


@pytest.mark.mpi(ranks=[1])
def test_only_models_with_experts_have_a_router(comm: Any) -> None:
    with pytest.raises(UsageError, match="--router is for models with experts"):
        run_program(comm, "llama", (2, 2), model="llama-tiny", prompt_ids="1", **CUT)
