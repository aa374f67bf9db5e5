"""How the experts of a model are placed on a mesh, reached and chosen, and what is counted of them.

The placements are meshrt's own design: the paper has one sentence on mixtures of experts (waferllm, section 8).
"""

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.models.config import Config
from meshrt.programs.mesh.experts.grid import RegionGrid, best_grid, parse_grid
from meshrt.programs.mesh.options import DispatchName, MeshOptions
from meshrt.programs.routing import Routing, make_routing
from meshrt.records import dataclass

STILL = ("padded", "dense")  # ways on which no token leaves its row of cores
PARTS = ("gate", "dispatch", "experts", "combine")  # of a layer with experts, in the order of the work


@dataclass
class ExpertTally:
    """What was counted of the layers with experts that ran.

    `tokens` that chose each expert, int [layers, experts], and by layer `passes` and the choices that were `dropped`,
    in prefill; cycles of the parts of a layer by phase; `places` of tokens that experts multiplied in prefill, used or
    not; `moved` and `routed` bytes of dispatch and combine, and by layer which links and pairs had most and fewest of
    them (experts/heat.py); the shares of cores that multiplied for experts at each step of decode, and their number.
    """

    prefill: np.ndarray
    decode: np.ndarray
    passes: np.ndarray
    dropped: np.ndarray
    cycles: dict[str, dict[str, float]]
    places: int = 0
    traffic: list[dict[str, Any]] = field(default_factory=list)
    moved: int = 0
    routed: int = 0
    used: float = 0.0
    steps: int = 0

    def as_facts(self) -> dict[str, Any]:
        """As JSON keeps it, for a generation that is to go on."""
        return {name: _plain(getattr(self, name)) for name in (field.name for field in fields(self))}

    def restore(self, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            now = getattr(self, name)
            setattr(self, name, np.array(value, now.dtype) if isinstance(now, np.ndarray) else value)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


@dataclass(frozen=True)
class Mixture:
    """`grid` has the regions of experts, if they have such, `capacity` the places that an expert has for tokens of a
    prompt at a time, `drop` leaves out what has none, and `routing` says by shape which are chosen. `router_cut`: the
    router's table is cut as every matrix is. `numbers` are those of the layers with experts among all, from 0 on.
    """

    grid: RegionGrid | None
    dispatch: DispatchName
    capacity: int
    drop: bool
    router_cut: bool
    routing: Routing | None
    numbers: dict[int, int]
    tally: ExpertTally
    phases: int  # of the trees inside regions in decode
    sample: int | None  # experts of one height that run, by shape, where the last of them is counted for the others
    steps: int | None  # the same of steps of a product, and of tiles that go round a ring


def make_mixture(block: Block, config: Config, how: MeshOptions, tokens: int) -> Mixture | None:
    """What the options say for this model; None where no layer has experts. UsageError."""
    numbers = {} if config.moe is None else {
        number: at for at, number in enumerate(filter(config.moe.has_experts, range(config.layers)))
    }  # fmt: skip
    if not numbers:
        _refuse(how)
        return None
    moe = config.moe
    assert moe is not None
    regions = how.experts == "regions"
    dispatch = how.dispatch or ("ring" if regions else "padded")
    check_experts(block, config, how, dispatch)
    grid = None
    if regions:
        given = how.expert_grid
        grid = best_grid(block.mesh, moe.experts) if given is None else parse_grid(given, block.mesh)
    if block.payload and (how.routing is not None or how.routing_seed):
        raise UsageError("--routing says by shape which experts are taken: the numbers say so here; add --payload none")
    routing = None
    if not block.payload:
        routing = make_routing(how.routing or "uniform", len(numbers), moe.experts, moe.top, how.routing_seed)
    counts = np.zeros((len(numbers), moe.experts), np.int64)
    tally = ExpertTally(
        counts, counts.copy(), np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64),
        {phase: dict.fromkeys(PARTS, 0.0) for phase in ("prefill", "decode")},
    )  # fmt: skip
    average = -(-tokens * moe.top // moe.experts)
    return Mixture(
        grid,
        dispatch,
        how.capacity or max(1, average),
        how.drop,
        how.router == "cut",
        routing,
        numbers,
        tally,
        how.phases_of_decode,
        how.experts_run,
        how.steps_run,
    )


def check_experts(block: Block, config: Config, how: MeshOptions, dispatch: DispatchName) -> None:
    """UsageError for options that do not go together, or not with this way to the experts."""
    regions = how.experts == "regions"
    if how.expert_grid is not None and how.experts != "regions":
        raise UsageError("--expert-grid is for --experts regions: give that as well, or leave it away")
    if regions and dispatch in STILL:
        raise UsageError(f"--dispatch {dispatch} leaves tokens in their rows: with --experts regions they have to move")
    if how.system != "waferllm" and (regions or dispatch not in STILL):
        raise UsageError(
            f"--system {how.system} adds up and multiplies over the whole mesh: --experts split, with --dispatch padded"
            " or dense"
        )
    if regions and how.decode_cores(block.mesh) != (block.mesh.width, block.mesh.height):
        raise UsageError("--decode-mesh moves experts over whole meshes: leave it away, or take --experts split")
    if regions and how.regions_of_decode != how.regions:
        raise UsageError("--decode-regions moves experts over whole meshes: leave it away, or take --experts split")
    if regions and config.factored:
        raise UsageError(
            "--experts regions is for matrices that are whole, and this model has some in two factors: take split"
        )
    if how.experts_run is not None and dispatch not in STILL:
        raise UsageError(f"--experts-run is for --dispatch padded and dense: with {dispatch} each pass is another")
    if how.capacity is not None and dispatch in STILL:
        raise UsageError(f"--capacity is for tokens that move: --dispatch {dispatch} has room for all of a row")
    if how.drop and dispatch in STILL:
        raise UsageError(f"--drop is for tokens that move: --dispatch {dispatch} has room for all of a row")


def _refuse(how: MeshOptions) -> None:
    """UsageError for options of experts where there are none."""
    for name in (
        "experts", "expert_grid", "dispatch", "capacity", "drop", "router", "experts_run", "routing", "routing_seed",
    ):  # fmt: skip
        if getattr(how, name):
            raise UsageError(f"--{name.replace('_', '-')} is for models with experts, and this one has none")


def report(mixture: Mixture, how: MeshOptions) -> dict[str, Any]:
    """What a run says of its experts, beside what was measured."""
    tally = mixture.tally
    ran = tally.prefill.any(axis=1)
    fullest = tally.prefill[ran].max(axis=1) / tally.prefill[ran].mean(axis=1)
    shares = {}
    for phase, parts in tally.cycles.items():
        if total := sum(parts.values()):
            shares[phase] = {name: cycles / total for name, cycles in parts.items()}
    return {
        "placement": how.experts or "split",
        "grid": None if mixture.grid is None else [mixture.grid.columns, mixture.grid.rows],
        "router": how.router or "whole",
        "dispatch": mixture.dispatch,
        "capacity": None if mixture.dispatch in STILL else mixture.capacity,
        "tokens": (tally.prefill + tally.decode).tolist(),
        "imbalance": {"mean": float(fullest.mean()), "worst": float(fullest.max())} if ran.any() else None,
        "passes": tally.passes.tolist(),
        "dropped": tally.dropped.tolist(),
        "filled": int(tally.prefill.sum() - tally.dropped.sum()) / tally.places if tally.places else None,
        "cores_used": tally.used / tally.steps if tally.steps else None,
        "traffic": tally.traffic or None,
        "link_bytes_per_routed_byte": tally.moved / tally.routed if tally.routed else None,
        "cycles": shares,
    }
