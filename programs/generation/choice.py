"""Which token comes next, and when none does: the likeliest, found by the machine, or one that rank 0 draws."""

from collections.abc import Callable

import numpy as np

from meshrt.models.errors import ModelError
from meshrt.models.sampling import check_drawing, sample
from meshrt.programs.generation.options import GenerationOptions
from meshrt.ranks.control import Control
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class Choice:
    """At most `limit` new tokens, until one of `stop`; drawn with `rng`, which has its state at rank 0; None where
    none is drawn."""

    temperature: float
    top_k: int
    top_p: float
    rng: "np.random.Generator | None"
    limit: int
    stop: tuple[int, ...]

    @property
    def draws(self) -> bool:
        return self.temperature > 0

    def draw(self, row: np.ndarray) -> int:
        """A token by its logits [vocabulary]. ModelError."""
        return sample(row, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, rng=self.rng)

    def is_over(self, new: list[int]) -> bool:
        """Is that all, after one token at least?"""
        return len(new) >= self.limit or new[-1] in self.stop

    def stopped(self, new: list[int]) -> str:
        """Why it is."""
        return "end of text" if new[-1] in self.stop else "max-new-tokens"


def make_choice(options: GenerationOptions, payload: bool, end_of_text: tuple[int, ...]) -> Choice:
    """The choice that was asked for. By shape no token ends a text. ModelError."""
    check_drawing(options.temperature, options.top_k, options.top_p, options.seed)
    stop = () if options.ignore_eos or not payload else end_of_text
    rng = np.random.default_rng(options.seed) if options.temperature else None  # NumPy loads it when it is asked for
    return Choice(options.temperature, options.top_k, options.top_p, rng, options.max_new_tokens, stop)


def at_rank_0(control: Control, row: np.ndarray | None, choose: Callable[[np.ndarray], int]) -> int:
    """The token that rank 0 chooses by a row of logits, float32 [vocabulary], which it has. ModelError, on all ranks.

    Drawing sorts the whole vocabulary: the logits leave the machine, and the token comes back as input.
    """
    token = 0
    problem: ModelError | None = None
    if control.rank == 0:
        assert row is not None
        try:
            token = choose(row)
        except ModelError as error:
            problem = error
    token, problem = control.bcast((token, problem))
    if problem is not None:
        raise problem
    return int(token)
