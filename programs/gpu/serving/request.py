"""Requests to a server: what they ask for, what became of them, and whether a model can serve them at all."""

from array import array
from collections.abc import Sequence
from dataclasses import field

from meshrt.errors import FullError, UsageError
from meshrt.models.family import Family
from meshrt.programs.gpu.batches.prompts import Tokens
from meshrt.programs.gpu.cache.pages import Pages
from meshrt.records import dataclass

IDS = "i"  # arrays of token ids: four bytes each, where a list takes thirty


@dataclass(eq=False)
class Request:
    """`prompt` arrives at `arrival` (seconds) and is to be followed by `limit` tokens, or by one of `stop`.

    Requests of a lower `priority` are served first. All but the newest token are to be in the cache, and the first
    `cached` are.
    """

    number: int
    prompt: Sequence[int]
    limit: int
    arrival: float = 0.0
    stop: tuple[int, ...] = ()
    new: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # when each new token was there
    preemptions: int = 0
    priority: int = 0
    sent: float | None = None  # to the server; a client that has too many open waits (--max-concurrency)
    admitted: float | None = None  # when the server first took it up
    cached: int = 0
    hit: int = 0  # tokens that the cache had of others, or of itself before it was preempted
    discarded: int = 0  # tokens that were in the cache when it was preempted, and are computed again
    ids: "array[int]" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.ids = array(IDS, self.prompt)

    @property
    def done(self) -> bool:
        return len(self.new) >= self.limit or (bool(self.new) and self.new[-1] in self.stop)

    @property
    def begin(self) -> float:
        """From when its latencies count."""
        return self.arrival if self.sent is None else self.sent

    def known(self) -> "array[int]":
        """All tokens, the new ones too."""
        self.ids.extend(self.new[len(self.ids) - len(self.prompt) :])
        return self.ids

    def tokens(self) -> Tokens:
        """The same as a batch has them; those from `cached` on are to be computed."""
        return Tokens(self.number, self.known(), self.cached)

    def __len__(self) -> int:
        return len(self.prompt) + len(self.new)


@dataclass(frozen=True)
class BatchLimits:
    """Of a batch: running requests, and tokens of a prefill (one prompt may be longer).

    With `chunked` prompts are computed in parts, beside new tokens, `prefill_tokens` in a step. `concurrency`: requests
    that clients have open at once. `swap`: who is preempted keeps its tokens in the host's memory.
    """

    batch: int = 256
    prefill_tokens: int = 8192
    chunked: bool = False
    concurrency: int | None = None
    swap: bool = False


def check_lengths(family: Family, requests: Sequence[Request]) -> None:
    """UsageError for a request that the model cannot serve."""
    positions = family.max_positions
    for request in requests:
        if not request.prompt or request.limit < 1:
            raise UsageError(
                f"request {request.number} has {len(request.prompt)} prompt tokens and asks for {request.limit} more"
            )
        check_length(request.number, len(request.prompt), request.limit, positions)


def check_length(number: int, tokens: int, limit: int, positions: int) -> None:
    """UsageError for a request that is longer than a model's positions."""
    if tokens + limit > positions:
        raise UsageError(
            f"request {number}: {tokens} prompt tokens and {limit} new ones are more than the {positions} positions of"
            " the model: shorten the prompt, or ask for fewer tokens"
        )


def check_room(pages: Pages, requests: Sequence[Request]) -> None:
    """FullError for a request that does not fit in the cache alone."""
    for request in requests:
        needed = pages.needed(len(request.prompt) + request.limit)
        if needed > pages.blocks:
            raise FullError(
                f"request {request.number} needs {needed} blocks of {pages.size} tokens, and the cache has "
                f"{pages.blocks}: raise --kv-blocks or --gpu-memory, use more GPUs (--tp), or ask for fewer tokens"
            )
