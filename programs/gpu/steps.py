"""Steps of a model over its cache: prompts run as they come, new tokens run or are replayed from plans."""

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.plan import StaticPlan
from meshrt.programs.gpu.batches.newtokens import NewTokens
from meshrt.programs.gpu.batches.parts import PromptParts
from meshrt.programs.gpu.batches.prompts import Prompts, Tokens
from meshrt.programs.gpu.cache.numbers import PagedCache
from meshrt.programs.gpu.cache.swapping import HostMemory, SwappedTokens, bring_back, host_bytes, keep_on_host
from meshrt.programs.gpu.forward import Ahead, forward
from meshrt.programs.gpu.shards import ShardedModel
from meshrt.records import dataclass

PlanKey = tuple[int, int, int]  # of a plan: rows, blocks of the longest, of all together
PLANS = 16  # that are kept; the one that was used longest ago goes first
NOTES = 512  # the same of steps by shape


@dataclass
class RecordedStep:
    """A plan for batches of some size: what to load before it is replayed, and where its results are then."""

    number: int
    plan: StaticPlan
    batch: NewTokens
    ahead: Ahead


@dataclass
class ShapeStep:
    """A step by shape that others of as many tokens are counted by."""

    plan: StaticPlan
    batch: NewTokens | PromptParts
    ahead: Ahead


@dataclass
class CacheSteps:
    """Steps over a cache. Logits are those of each sequence's last token, or if `all_logits` of all of a prompt."""

    gpus: Gpus
    model: ShardedModel
    cache: PagedCache
    all_logits: bool = False
    ahead: Ahead | None = None  # what the last step left
    plans: dict[PlanKey, RecordedStep] = field(default_factory=dict)
    noted: dict[tuple[int, int], ShapeStep] = field(default_factory=dict)  # by sequences and tokens
    recorded: int = 0  # plans in all
    largest: int = 0  # batch of new tokens

    swapped: dict[int, SwappedTokens] = field(default_factory=dict)  # tokens of sequences in the host's memory
    host: HostMemory = field(default_factory=lambda: HostMemory(None))
    computed: int = 0  # tokens

    def run(self, sequences: Sequence[Tokens]) -> list[int]:
        """The tokens of each from its `begin` on, earlier ones are in the cache: the token that follows each."""
        news = sum(len(sequence.tokens) - sequence.begin for sequence in sequences)
        self.computed += news
        if all(sequence.begin == 0 for sequence in sequences):
            return self.prompts(sequences)
        if news == len(sequences):
            return self.new_tokens(sequences)
        old = any(sequence.begin == len(sequence.tokens) - 1 for sequence in sequences)
        with self.gpus.phase("mixed" if old else "prefill", news):
            ahead = self._eager(sequences, news)
        return self._next_ids(ahead, len(sequences))

    def _eager(self, sequences: Sequence[Tokens], news: int) -> Ahead:
        """So many new tokens, kernel by kernel. By shape what is launched depends on their number, and attention's cost
        on where they are; but for experts, who are drawn, and a low-rank cache, whose blocks are squeezed."""
        alike = not (self.gpus.payload or self.model.mixing or self.cache.low_rank)
        if not alike:
            return forward(self.gpus, self.model, self._batch(sequences, news))
        key = len(sequences), news
        noted = self.noted.pop(key, None)
        if noted is None:
            while len(self.noted) >= NOTES:
                self.noted.pop(next(iter(self.noted))).plan.close()
            batch = self._batch(sequences, news)
            with self.gpus.noting() as plan:
                noted = ShapeStep(plan, batch, forward(self.gpus, self.model, batch))
        else:
            noted.batch.instead(sequences)
            noted.plan.replay()
        self.noted[key] = noted  # the youngest
        return noted.ahead

    def _batch(self, sequences: Sequence[Tokens], news: int) -> NewTokens | PromptParts:
        if news > len(sequences):
            return PromptParts(self.gpus, self.model, self.cache, sequences)
        batch = NewTokens(self.gpus, self.model, self.cache, news, *self._sizes(sequences))
        batch.load(sequences)
        return batch

    def swap_out(self, number: int, tokens: int) -> bool:
        """Keep the blocks of a sequence's first so many tokens in the host's memory. False, and nothing done, where
        there is no room for them."""
        if not self.host.take(number, host_bytes(self.gpus, self.model, self.cache, tokens)):
            return False
        with self.gpus.phase("swap"):
            self.swapped[number] = keep_on_host(self.gpus, self.model, self.cache, number, tokens)
        return True

    def swap_in(self, number: int) -> None:
        """Bring them back, to the blocks that the sequence has now."""
        with self.gpus.phase("swap"):
            bring_back(self.gpus, self.model, self.cache, number, self.swapped.pop(number))
        self.host.give_back(number)

    def prompts(self, sequences: Sequence[Tokens]) -> list[int]:
        """Whole sequences: the token that follows each."""
        with self.gpus.phase("prefill", sum(len(sequence.tokens) for sequence in sequences)):
            ahead = forward(self.gpus, self.model, Prompts(self.model, self.cache, sequences), self.all_logits)
        return self._next_ids(ahead, len(sequences))

    def new_tokens(self, sequences: Sequence[Tokens]) -> list[int]:
        """Sequences of which all but the last token are in the cache: the token that follows each."""
        self.largest = max(self.largest, len(sequences))
        with self.gpus.phase("decode", len(sequences)):
            if self.gpus.static:
                recorded = self._plan(sequences)
                recorded.batch.load(sequences)
                recorded.plan.replay()
                ahead = recorded.ahead
            else:
                ahead = self._eager(sequences, len(sequences))
        return self._next_ids(ahead, len(sequences))

    def _sizes(self, sequences: Sequence[Tokens]) -> tuple[int, int]:
        """Blocks of the longest sequence, and of all."""
        blocks = [self.cache.pages.needed(len(sequence.tokens)) for sequence in sequences]
        return max(blocks), min(sum(blocks), self.cache.pages.blocks)

    def _plan(self, sequences: Sequence[Tokens]) -> RecordedStep:
        """The plan for batches like this one; sizes are rounded up, so that one serves for a while."""
        longest, together = self._sizes(sequences)
        limit = self.cache.pages.blocks
        rows, blocks = rounded(len(sequences)), min(rounded(longest), limit)
        key = rows, blocks, min(rounded(together), limit) if self.cache.low_rank else 0
        if key in self.plans:
            self.plans[key] = self.plans.pop(key)  # the youngest
            return self.plans[key]
        while len(self.plans) >= PLANS:
            self.gpus.give_up(self.plans.pop(next(iter(self.plans))).plan)
        self.recorded += 1
        return self.record(key, self.recorded - 1)

    def record(self, key: PlanKey, number: int) -> RecordedStep:
        """The plan of that number, for batches of that size."""
        batch = NewTokens(self.gpus, self.model, self.cache, *key)
        with self.gpus.recording(f"plan {number}") as plan:
            ahead = forward(self.gpus, self.model, batch)
        self.plans[key] = RecordedStep(number, plan, batch, ahead)
        return self.plans[key]

    def _next_ids(self, ahead: Ahead, count: int) -> list[int]:
        """The tokens that a step found, by shape zeros. UsageError where a logit is no number."""
        self.ahead = ahead
        if not self.gpus.payload:
            return [0] * count
        if not np.isfinite(ahead.best[:count]).all():
            raise UsageError(
                "no token can be picked: a logit is infinite or not a number; numbers in the checkpoint are, or become"
                " so in --dtype: float32 has the most room"
            )
        return [int(token) for token in ahead.ids[0][:count]]

    def logits(self) -> np.ndarray | None:
        """Those of the last step, [rows, vocabulary], on every rank; None by shape. All ranks call it."""
        assert self.ahead is not None
        return self.gpus.to_host(self.ahead.logits)

    def close(self) -> None:
        for recorded in self.plans.values():
            self.gpus.give_up(recorded.plan)
        for noted in self.noted.values():
            noted.plan.close()
        self.plans.clear()
        self.noted.clear()


def rounded(count: int) -> int:
    """The next number of the form m 2^e with m in 4..7, or below 4 the number itself: a quarter more at most."""
    step = 1 << max(count.bit_length() - 3, 0)
    return -(-count // step) * step
