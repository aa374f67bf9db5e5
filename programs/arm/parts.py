"""A model in DRAM: its matrices, packed, and what lies between them. Arrays are None by shape."""

from collections.abc import Iterator

import numpy as np

from meshrt.models.config import Config
from meshrt.models.matrix import Activation
from meshrt.programs.arm.attention import ArmScores, HeadCounts
from meshrt.programs.arm.products.weights import PackedWeights, ProductMethod
from meshrt.programs.arm.simd.between import ArmNorm
from meshrt.programs.arm.split import Split
from meshrt.programs.routing import Routing
from meshrt.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class ArmFactors:
    """Matrices in two factors that have one input: their first ones side by side, and the second of each."""

    first: PackedWeights
    seconds: tuple[PackedWeights, ...]
    how: ProductMethod

    @property
    def packed(self) -> tuple[PackedWeights, ...]:
        return self.first, *self.seconds


@dataclass(frozen=True)
class ArmMatrix:
    """One matrix or several side by side, packed, and how products with them are computed. `bias` is None by shape.

    `whole`: those that are not in factors; as one, if none is. `more`: compensators, which are added to these.
    """

    name: str
    inner: int
    columns: int
    whole: tuple[PackedWeights, ...]
    how: ProductMethod
    biased: bool
    bias: Array | None
    factors: ArmFactors | None = None
    more: ArmFactors | None = None

    @property
    def packed(self) -> tuple[PackedWeights, ...]:
        """All that lies in DRAM."""
        thin = [packed for factors in (self.factors, self.more) if factors is not None for packed in factors.packed]
        return *self.whole, *thin

    @property
    def ranks(self) -> list[int]:
        """Columns between two factors."""
        return [factors.first.columns for factors in (self.factors, self.more) if factors is not None]

    @property
    def nbytes(self) -> int:
        return sum(packed.nbytes for packed in self.packed)

    @property
    def group(self) -> int:
        """Inputs whose weights share a scale."""
        return self.packed[0].group


@dataclass(frozen=True)
class ArmMlp:
    """`inner`: gate and up side by side, or up alone."""

    inner: ArmMatrix
    down: ArmMatrix
    gated: bool
    activation: Activation

    @property
    def width(self) -> int:
        return self.down.inner

    @property
    def matrices(self) -> tuple[ArmMatrix, ...]:
        return self.inner, self.down


@dataclass(frozen=True)
class ArmExperts:
    """MLPs of which a token takes the `top` that a router finds likeliest, and one that all tokens take, if any.

    `router`: weights float32 [panels, K, 8] of columns in panels, of which the first are those of the experts; one more
    is that of the shared expert's gate, if it is `gated`. `layer`: its number among those with experts.
    """

    layer: int
    router: Array | None
    buffer: int
    experts: tuple[ArmMlp, ...]
    top: int
    renormalise: bool
    shared: ArmMlp | None
    gated: bool

    @property
    def columns(self) -> int:
        """Of the router."""
        return len(self.experts) + self.gated

    @property
    def mlps(self) -> tuple[ArmMlp, ...]:
        return self.experts if self.shared is None else (*self.experts, self.shared)

    @property
    def matrices(self) -> tuple[ArmMatrix, ...]:
        return tuple(matrix for mlp in self.mlps for matrix in mlp.matrices)


@dataclass(frozen=True)
class QkvNorms:
    """What becomes of queries, keys and values before anything else, by rows: norms of each head, or of all together,
    and bounds. `sizes`: numbers that a norm of queries, and of keys, is over.
    """

    norms: tuple[ArmNorm, ArmNorm] | None
    sizes: tuple[int, int]
    clip: float | None


@dataclass(frozen=True)
class ArmLayer:
    """One layer. `after_attention`, `after_mlp`: norms of what these make, before it is added. `rope`: which of the
    model's rotary embeddings.
    """

    attention_norm: ArmNorm
    qkv: ArmMatrix
    o: ArmMatrix
    mlp_norm: ArmNorm
    mlp: ArmMlp | ArmExperts
    scores: ArmScores
    heads: QkvNorms | None = None
    after_attention: ArmNorm | None = None
    after_mlp: ArmNorm | None = None
    rope: int = 0

    @property
    def matrices(self) -> tuple[ArmMatrix, ...]:
        return self.qkv, self.o, *self.mlp.matrices

    @property
    def mlps(self) -> tuple[ArmMlp, ...]:
        return (self.mlp,) if isinstance(self.mlp, ArmMlp) else self.mlp.mlps


@dataclass(frozen=True)
class ArmPositions:
    """Learned positions: a table float16 [positions, K], its buffer, and the row of the first position."""

    table: Array | None
    buffer: int
    offset: int


@dataclass(frozen=True)
class ArmModel:
    """A model in DRAM. `embedding`: its table as float16 [vocabulary, K], and the buffer of it.

    By shape there may be fewer `layers` than it has: the last one is counted for those that lack. `loads`: of layers
    with experts, how many tokens each expert got so far [layers, experts]; `routing`: who gets them by shape.
    """

    config: Config
    heads: HeadCounts
    embedding: Array | None
    table: int
    layers: tuple[ArmLayer, ...]
    norm: ArmNorm
    head: ArmMatrix
    split: Split
    blocks: bool  # activations have a scale for each group, not for each row
    flash: int = 0  # layers, the last ones, that are read from flash in every pass
    positions: ArmPositions | None = None
    loads: Array | None = None
    routing: Routing | None = None

    def matrices(self) -> Iterator[ArmMatrix]:
        """Of all layers that run."""
        return (matrix for layer in self.layers for matrix in layer.matrices)


@dataclass(frozen=True)
class PassRoom:
    """Buffers of one pass over T tokens. `middle` lies between two factors, `more` is what a compensator makes. The
    last three are for experts: rows after their norm, the router's scores, and the sum of what experts make.
    """

    x: int
    codes: int
    y: int
    mixed: int
    middle: int
    more: int
    normed: int
    scores: int
    total: int


@dataclass(frozen=True)
class More:
    """A product that is to be added to x: numbers, buffer, whose it is, and the norm that comes before, if any."""

    numbers: Array | None
    buffer: int
    matrix: ArmMatrix | None = None
    norm: ArmNorm | None = None

    @property
    def biases(self) -> tuple[Array | None, ...]:
        return (self.matrix.bias,) if self.matrix is not None and self.matrix.biased else ()
