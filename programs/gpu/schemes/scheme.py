"""What a scheme is: how the matrices of a sub-layer are cut, what is computed of them where, and what is exchanged.

A module of this package is a scheme if it has these four functions. `first` is for the matrices before the attention
or the activation (Q, K and V; gate and up), `second` for the one after it. Arrays are lists, one for each hosted GPU.
`ahead` is work that needs nothing of `first`: a scheme may call it while a collective goes on, or leave it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from meshrt.gpu.gpus import Gpus
from meshrt.models.folders.checkpoint import Index
from meshrt.models.matrix import Matrix
from meshrt.programs.gpu.cut import Cutter
from meshrt.records import dataclass

Arrays = list[np.ndarray]
RunAhead = Callable[[], None] | None


@dataclass(frozen=True)
class Results:
    """What `first` leaves on one GPU: of each matrix its product, and what it has in the low-rank space."""

    values: list[np.ndarray]  # [tokens, columns]: this GPU's columns if the sub-layer is split, else all
    latents: list[np.ndarray | None]  # [tokens, rank], the same on all GPUs; None: not decomposed, or not kept


class Scheme(Protocol):
    """`split`: does a sub-layer that begins with these matrices leave each GPU its own columns (and heads)?"""

    def split(self, matrices: Sequence[Matrix]) -> bool: ...

    def cut_first(self, cut: Cutter, matrices: Sequence[Matrix], columns: Sequence[Index]) -> Any: ...

    def first(
        self, gpus: Gpus, shards: Sequence[Any], xs: Arrays, wanted: int, ahead: RunAhead = None
    ) -> list[Results]: ...

    def cut_second(self, cut: Cutter, matrix: Matrix, rows: Index, split: bool) -> Any: ...

    def second(self, gpus: Gpus, shards: Sequence[Any], ys: Arrays) -> Arrays: ...
