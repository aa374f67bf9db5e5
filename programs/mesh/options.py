"""How a language model is computed on the mesh: options of its own, and what of them goes together."""

from typing import Annotated, Literal

from meshrt.errors import UsageError
from meshrt.mesh.collectives.treeplan import MOST_PHASES
from meshrt.mesh.mesh import Mesh, parse_mesh
from meshrt.options import AtLeast, AtMost, Shown
from meshrt.programs.generation.options import Dtype, LayersRun
from meshrt.programs.mesh.cache import Policy
from meshrt.programs.mesh.systems import Programs, System
from meshrt.programs.routing import RoutingSeed, RoutingText
from meshrt.records import dataclass

DispatchName = Literal["padded", "dense", "multicast", "ring", "crossbar"]


@dataclass(frozen=True, kw_only=True)
class How:
    """Options that `llama` has on the mesh alone."""

    system: Annotated[System, "how it is multiplied and added"] = "waferllm"
    kv: Annotated[Policy, "KV cache policy"] = "shift"
    dtype: Dtype = None
    phases: Annotated[int, "K of the K-trees", AtLeast(1), AtMost(MOST_PHASES)] = 2
    decode_phases: Annotated[
        int | None, "the same in decode  [default: as in prefill]", AtLeast(1), AtMost(MOST_PHASES)
    ] = None  # fmt: skip
    allreduces: Annotated[Literal["fused", "published"], "6 or 10 allreduces a layer in decode"] = "fused"
    head_groups: Annotated[
        int | None, "groups of heads side by side  [default: what leaves least to a core]", AtLeast(1)
    ] = None  # fmt: skip
    regions: Annotated[int, "meshes that share the layers out, one after the other", AtLeast(1)] = 1
    decode_mesh: Annotated[
        str | tuple[int, int] | None, "cores that decode, at the same corner  [default: those of prefill]", Shown("WxH")
    ] = None  # fmt: skip
    decode_regions: Annotated[
        int | None, "regions that decode  [default: as many as prefill has]", AtLeast(1)
    ] = None  # fmt: skip
    layers_run: LayersRun = None
    steps_run: Annotated[
        int | None, "of prefill: the same for steps of a product, and of tokens going round; --payload none", AtLeast(1)
    ] = None  # fmt: skip
    layers_only: Annotated[bool, "prefill without embedding and head; --payload none"] = False
    as_published: Annotated[
        bool, "the paper's published programs: one head of the model's width, chunks padded, no embedding, no head"
    ] = False
    experts: Annotated[
        Literal["split", "regions"] | None, "each expert over all cores, or in a region of its own  [default: split]"
    ] = None
    expert_grid: Annotated[
        str | tuple[int, int] | None, "regions of experts  [default: up to one an expert, as divides the mesh]",
        Shown("CxR"),
    ] = None  # fmt: skip
    dispatch: Annotated[
        DispatchName | None,
        "how a prompt's tokens get to experts; padded and dense: they stay  [default: padded; with regions ring]",
    ] = None
    capacity: Annotated[
        int | None, "tokens of a prompt that an expert takes at a time  [default: its average]", AtLeast(1)
    ] = None  # fmt: skip
    drop: Annotated[
        bool, "one pass for all of a prompt: tokens that an expert has no place for are dropped, and counted"
    ] = False
    router: Annotated[
        Literal["whole", "cut"] | None,
        "the router's table: whole at every line of cores, or cut over columns too, for one more allreduce in decode"
        " and a product of all cores in prefill  [default: whole]",
    ] = None
    experts_run: Annotated[
        int | None,
        "padded, dense: run so many experts of each height, count the last for the others; --payload none",
        AtLeast(1),
    ] = None
    routing: RoutingText = None
    routing_seed: RoutingSeed = 0
    compensators: Annotated[
        Literal["fused", "apart"],
        "of quantized matrices: added to the rows that are rebuilt, or products of their own",
    ] = "fused"
    activations: Annotated[
        Literal["row", "block", "none"] | None,
        "of a quantized model, in 8 bits by token or by what a core has of a group of weights; none: weights are"
        " rebuilt  [default: the folder's; with experts none]",
    ] = None

    @property
    def programs(self) -> Programs:
        """Whose products and sums run."""
        return "published" if self.as_published else self.system

    @property
    def phases_of_decode(self) -> int:
        return self.phases if self.decode_phases is None else self.decode_phases

    @property
    def regions_of_decode(self) -> int:
        return self.regions if self.decode_regions is None else self.decode_regions

    def decode_cores(self, mesh: Mesh) -> tuple[int, int]:
        """(width, height) of the mesh that decodes, where this one begins. UsageError."""
        return parse_mesh(self.decode_mesh) if self.decode_mesh is not None else (mesh.width, mesh.height)


def check_how(how: How, payload: bool, context: int) -> None:
    """UsageError for what cannot be, or has no use."""
    if payload and (how.layers_run is not None or how.steps_run is not None or how.layers_only):
        raise UsageError("--layers-run, --steps-run and --layers-only leave numbers out: add --payload none")
    if payload and how.experts_run is not None:
        raise UsageError("--experts-run leaves numbers out: add --payload none")
    if how.layers_only and context:
        raise UsageError("--layers-only leaves embedding and head of prefill out: with --context there is no prefill")
    if how.steps_run is not None and context:
        raise UsageError("--steps-run is for prefill: with --context there is none; leave it away, or give a prompt")
    if how.decode_phases is not None and how.system != "waferllm":
        raise UsageError(f"--decode-phases is for the K-trees of waferllm: {how.system} adds up in its own way")
    if context and (how.decode_mesh, how.decode_regions) != (None, None):
        raise UsageError("--context has no prefill to change from: give decode's cores as --mesh and --regions")
    if how.as_published:
        _check_as_published(how)


FIXED = {
    "system": "waferllm", "phases": 2, "decode_phases": None, "allreduces": "fused", "head_groups": None, "regions": 1,
    "decode_mesh": None, "decode_regions": None,
}  # fmt: skip


def _check_as_published(how: How) -> None:
    """UsageError for what the published programs do not leave open."""
    for name, default in FIXED.items():
        if getattr(how, name) != default:
            raise UsageError(f"--as-published says how the programs are: leave --{name.replace('_', '-')} away")
