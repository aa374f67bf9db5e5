"""A layer of a model: its matrices, their sizes, and the form in which a folder keeps the numbers of each.

In place of `..mlp.gate_proj.weight` [out, in] a folder can have two factors, `..mlp.gate_u_proj.weight` [r, in] and
`..mlp.gate_v_proj.weight` [out, r], named as in Table 6 of NeuronMM; likewise the other matrices of a layer, each with
a rank of its own. A bias keeps its name. config.json says so in one key more:

    "low_rank": {"ranks": {"model.layers.0.mlp.gate_proj": 1280, ...}, ...how they were chosen...}

Quantized matrices are those of models/quantize/form.py.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from meshrt.models.quantize.form import Quantized
from meshrt.records import dataclass


@dataclass(frozen=True)
class Dense:
    """W itself."""


@dataclass(frozen=True)
class LowRank:
    """Two factors in its place: x W = (x U) V, with U [rows, rank] and V [rank, columns]."""

    rank: int


Form: TypeAlias = Dense | LowRank | Quantized
Activation: TypeAlias = Literal["silu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class Matrix:
    """y = x W with `rows` numbers in and `columns` out. Folders have W^T, [columns, rows], under the name + .weight."""

    name: str
    rows: int
    columns: int
    form: Form = Dense()
    bias: bool = False

    @property
    def rank(self) -> int | None:
        """The inner size of its factors; None where it is whole."""
        return self.form.rank if isinstance(self.form, LowRank) else None

    @property
    def most_rank(self) -> int:
        """Factors of a greater rank can do no more."""
        return min(self.rows, self.columns)

    def factors(self) -> tuple["Matrix", ...]:
        """What x is multiplied by, one after the other: itself, or U and V, which are dense."""
        if not isinstance(self.form, LowRank):
            return (self,)
        u, v = factor_names(self.name)
        return Matrix(u, self.rows, self.form.rank), Matrix(v, self.form.rank, self.columns)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """What a folder has of it, by name: shapes as Hugging Face has them."""
        shapes: dict[str, tuple[int, ...]] = {
            f"{factor.name}.weight": (factor.columns, factor.rows) for factor in self.factors()
        }
        if isinstance(self.form, Quantized):
            specs = self.form.tensors(self.name, self.columns, self.rows)
            shapes = {name: shape for name, (_, shape) in specs.items()}
        return shapes | ({f"{self.name}.bias": (self.columns,)} if self.bias else {})


@dataclass(frozen=True)
class Mlp:
    """act(x gate) * (x up), or act(x up) alone where there is no gate, and that times down."""

    gate: Matrix | None
    up: Matrix
    down: Matrix
    activation: Activation = "silu"

    @property
    def inner(self) -> tuple[Matrix, ...]:
        """The matrices before the activation: gate and up, or one alone."""
        return (self.up,) if self.gate is None else (self.gate, self.up)

    def inputs(self) -> tuple[tuple[Matrix, ...], ...]:
        """Its matrices, those together that multiply the same input."""
        return self.inner, (self.down,)

    def matrices(self) -> tuple[Matrix, ...]:
        return *self.inner, self.down


@dataclass(frozen=True)
class Experts:
    """Many MLPs, of which a token takes the `top` that the router finds most likely, and one that all tokens take.

    y = the sum over those chosen of share * expert(x), in order of their number, + shared(x), which is multiplied by
    sigmoid(x shared_gate) where there is a gate. models/experts.py says which are chosen and what their shares are.
    """

    router: Matrix  # a column for each expert
    experts: tuple[Mlp, ...]
    top: int
    renormalise: bool  # the shares of those chosen add up to 1; else they are the router's probabilities
    shared: Mlp | None = None
    shared_gate: Matrix | None = None  # of one column

    @property
    def mlps(self) -> tuple[Mlp, ...]:
        """Those of the experts in order, then the shared one."""
        return self.experts if self.shared is None else (*self.experts, self.shared)

    @property
    def routing(self) -> tuple[Matrix, ...]:
        """What decides and weighs: small, and dense whatever becomes of the other matrices."""
        return (self.router,) if self.shared_gate is None else (self.router, self.shared_gate)

    def inputs(self) -> tuple[tuple[Matrix, ...], ...]:
        """The matrices of its MLPs, those together that multiply the same input: of an expert, its tokens alone."""
        return tuple(together for mlp in self.mlps for together in mlp.inputs())

    def matrices(self) -> tuple[Matrix, ...]:
        """Those that may be kept in another form: all but `routing`."""
        return tuple(matrix for mlp in self.mlps for matrix in mlp.matrices())


@dataclass(frozen=True)
class Norm:
    """An RMSNorm over each `size` numbers of a row."""

    name: str
    size: int


@dataclass(frozen=True)
class Layer:
    """Attention, and an MLP or experts, each after a norm, and in some models before another one: given by name."""

    attention_norm: str
    q: Matrix
    k: Matrix
    v: Matrix
    o: Matrix
    mlp_norm: str
    mlp: Mlp | Experts
    q_norm: Norm | None = None  # of the queries, before they are turned; of one head, or of all together
    k_norm: Norm | None = None
    after_attention: str | None = None
    after_mlp: str | None = None
    window: int | None = None  # tokens that a token sees, itself and those before it; None: all
    rope: int = 0  # which of the model's rotary embeddings

    @property
    def norms(self) -> tuple[str, ...]:
        """All that are over the hidden size, in their order."""
        names = self.attention_norm, self.after_attention, self.mlp_norm, self.after_mlp
        return tuple(name for name in names if name is not None)

    @property
    def attention(self) -> tuple[Matrix, ...]:
        return self.q, self.k, self.v, self.o

    @property
    def head_norms(self) -> tuple[Norm, ...]:
        return tuple(norm for norm in (self.q_norm, self.k_norm) if norm is not None)

    @property
    def routing(self) -> tuple[Matrix, ...]:
        return self.mlp.routing if isinstance(self.mlp, Experts) else ()

    @property
    def dense_mlp(self) -> Mlp:
        """Its MLP, for those who have refused a model with experts (models/family.py, check_plain)."""
        assert isinstance(self.mlp, Mlp), "a layer with experts where an MLP is expected"
        return self.mlp

    def inputs(self) -> tuple[tuple[Matrix, ...], ...]:
        """All of `matrices`, those together that multiply the same input."""
        return (self.q, self.k, self.v), (self.o,), *self.mlp.inputs()

    def matrices(self) -> tuple[Matrix, ...]:
        """Those that may be kept in another form."""
        return *self.attention, *self.mlp.matrices()


def form_of(ranks: Mapping[str, int], name: str) -> Form:
    """The form of a matrix, by the ranks of those that are in factors."""
    return LowRank(ranks[name]) if name in ranks else Dense()


def factor_names(matrix: str) -> tuple[str, str]:
    """`..mlp.gate_proj` to the names of its factors u, v: `..mlp.gate_u_proj`, `..mlp.gate_v_proj`."""
    stem = matrix.removesuffix("_proj")
    return stem + "_u_proj", stem + "_v_proj"


def read_ranks(low_rank: Mapping[str, Any], matrices: Iterable[Matrix]) -> dict[str, int]:
    """The ranks of config.json's `low_rank`, by matrix; `matrices` are all that may be there.

    Raises ValueError saying what is wrong with the key.
    """
    ranks, limits = low_rank.get("ranks"), {matrix.name: matrix.most_rank for matrix in matrices}
    if not isinstance(ranks, dict) or not ranks:
        raise ValueError(f"has no 'ranks', an object such as {{{next(iter(limits))!r}: 16}}")
    for name, rank in ranks.items():
        if name not in limits:
            raise ValueError(f"has a rank for {name!r}, which is no matrix of this model's layers")
        if type(rank) is not int or not 1 <= rank <= limits[name]:
            raise ValueError(f"has rank {rank!r} for {name}; it must be 1..{limits[name]}, the matrix's own limit")
    return dict(ranks)
