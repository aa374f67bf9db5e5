"""A model on replicas of pipelines of tensor-parallel groups (GPipe, NeurIPS 2019; Megatron-LM, SC 2021).

Layers are shared out to stages as evenly as they go; the first stage has the embedding, the last one the head. A stage
sends what its layers made of a micro-batch to the next one, each GPU to the one at its place, and goes on with the next
micro-batch; the last stage sends the new tokens back to the first. Where a GPU waits for another stage, or for the
others at the end of a phase, it is idle: the bubbles. Replicas share the prompts out, and meet at the ends of phases.
The hosts of all stages launch a micro-batch's kernels when they know its last tokens. All prompts are computed from the
beginning on, so that the cache has room for all.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.stages import UnderWay, arrive, pass_on, tensor_groups
from meshrt.models.family import Family, first_unlike
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.models.matrix import Mlp
from meshrt.programs.generation.options import GenerationOptions
from meshrt.programs.gpu.batches.newtokens import NewTokens
from meshrt.programs.gpu.batches.parts import PromptParts
from meshrt.programs.gpu.batches.prompts import Prompts, Tokens
from meshrt.programs.gpu.cache.numbers import PagedCache, make_pools
from meshrt.programs.gpu.cache.pages import Pages
from meshrt.programs.gpu.coded import Hold
from meshrt.programs.gpu.forward import Ahead, head_of, through
from meshrt.programs.gpu.options import GpuOptions
from meshrt.programs.gpu.serving.request import Request, check_lengths, check_room
from meshrt.programs.gpu.shards import ShardedModel, place
from meshrt.programs.shares import part
from meshrt.programs.storage import storage_type
from meshrt.records import dataclass

PromptPieces = list[tuple[Request, Tokens]]  # what a micro-batch computes of whom


@dataclass(frozen=True)
class Stage:
    """A pipeline stage: a tensor-parallel group with its layers, and its part of the cache.

    Without hosted GPUs there is nothing.
    """

    gpus: Gpus
    model: ShardedModel
    cache: PagedCache


@dataclass(frozen=True)
class Pipelines:
    """`stages` by replica; requests of a replica run in `micro_batches` groups at most."""

    gpus: Gpus
    stages: list[list[Stage]]
    micro_batches: int


def check_pipeline(gpus: Gpus, family: Family, options: GenerationOptions, how: GpuOptions) -> None:
    """UsageError for what cannot be combined with --pp and --dp."""
    refused = {
        "--static records one group's kernels": gpus.static,
        f"--kv {how.kv} keeps latents": how.kv != "dense",
        "--scheme overlapped has a second stream": how.scheme == "overlapped",
        "--checkpoint keeps the state of one group": options.checkpoint is not None,
        "--logits are of one group": options.logits is not None,
        "--temperature draws by one group's logits": bool(options.temperature),
        "--context has no prompt to share out": bool(options.context),
        "a dialogue goes on in the cache of one group": gpus.console.turns is not None,
        "the model has experts": any(not isinstance(layer.mlp, Mlp) for layer in family.layers),
    }
    for clash, given in refused.items():
        if given:
            raise UsageError(f"--pp and --dp: {clash}; leave one of the two away")
    if gpus.pp > len(family.layers):
        raise UsageError(f"--pp is {gpus.pp}; the model has {len(family.layers)} layers, one for each stage at least")


def open_pipelines(
    gpus: Gpus, family: Family, source: Checkpoint | None, how: GpuOptions, requests: Sequence[Request], hold: Hold,
    micro_batches: int | None,
) -> Pipelines:  # fmt: skip
    """The model on all stages. UsageError, LimitError, ModelError."""
    check_lengths(family, requests)
    if gpus.payload and how.layers_run is not None:
        raise UsageError("--layers-run is for shapes: add --payload none")
    kind, longest = (
        storage_type(how.dtype or family.dtype),
        max(len(request.prompt) + request.limit for request in requests),
    )
    for gpu in gpus.mine:
        gpu.dtype = kind
    replicas = []
    for number, groups in enumerate(tensor_groups(gpus)):
        own = requests[number :: gpus.dp]
        needed = sum(-(-(len(request.prompt) + request.limit) // how.block_size) for request in own)
        pages = Pages(max(needed, 1) if how.kv_blocks is None else how.kv_blocks, how.block_size)
        check_room(pages, own)
        if needed > pages.blocks:
            raise UsageError(f"--kv-blocks is {pages.blocks}; the requests of a replica need {needed} at once")
        replicas.append([
            _stage(group, family, source, how, pages, longest, hold, at, len(groups)) for at, group in enumerate(groups)
        ])  # fmt: skip
    return Pipelines(gpus, replicas, micro_batches or gpus.pp)


def _stage(
    group: Gpus, family: Family, source: Checkpoint | None, how: GpuOptions, pages: Pages, positions: int, hold: Hold,
    at: int, stages: int,
) -> Stage:  # fmt: skip
    own = part(at, stages, len(family.layers))
    layers = replace(family, layers=family.layers[own])
    run = min(how.layers_run or len(layers.layers), len(layers.layers))
    unlike = first_unlike(layers.layers, run)
    if unlike is not None:
        raise UsageError(
            f"--layers-run {run}: layer {own.start + unlike} has other ranks or a window, so it has to run"
        )  # fmt: skip
    model = place(group, layers, how.scheme, source, run, positions, hold, None, (at == 0, at == stages - 1))
    pools = tuple(
        make_pools(
            gpu, pages.slots, [(layer.heads.width, layer.heads.width) for layer in shard.layers],
            max(layer.heads.width for layer in shard.layers), False, len(layers.layers),
        )
        for gpu, shard in zip(group.mine, model.shards, strict=True)
    )  # fmt: skip
    return Stage(group, model, PagedCache(pages, pools, "dense"))


def answer(pipelines: Pipelines, requests: Sequence[Request]) -> None:
    """All requests to their ends: prompts in micro-batches through the stages, then new tokens in the same way."""
    gpus = pipelines.gpus
    owns = [requests[number :: gpus.dp] for number in range(gpus.dp)]
    for own, stages in zip(owns, pipelines.stages, strict=True):
        for request in own:
            stages[0].cache.pages.reserve(request.number, len(request.prompt) + request.limit)
    groups = [_cut(own, pipelines.micro_batches) for own in owns]
    backs = Backs({request.number: each[0].number for group in groups for each in group for request in each}, {})
    with gpus.phase("prefill", sum(len(request.prompt) for request in requests)):
        _step(pipelines, [_prompts(pipelines, own) for own in owns], backs)
    if not all(request.done for request in requests):
        before = sum(len(request.new) for request in requests)
        with gpus.phase("decode"):
            while not all(request.done for request in requests):
                news = [[_news(each) for each in group] for group in groups]
                _step(pipelines, [[pieces for pieces in own if pieces] for own in news], backs)
        gpus.phases["decode"].tokens += sum(len(request.new) for request in requests) - before
    # of all stages, whoever hosts them: a stage that has no more layers than run stands for itself
    gpus.sampled = any(
        stage.model.layers_run < len(stage.model.family.layers) for stages in pipelines.stages for stage in stages
    )


@dataclass(frozen=True)
class Backs:
    """Tokens on their way to the first stage, by the micro-batch of each request."""

    batches: dict[int, int]
    sent: dict[int, UnderWay]


def _cut(requests: Sequence[Request], groups: int) -> list[Sequence[Request]]:
    count = min(groups, len(requests))
    return [requests[part(at, count, len(requests))] for at in range(count)]


def _prompts(pipelines: Pipelines, requests: Sequence[Request]) -> list[PromptPieces]:
    """Prompts in groups; of fewer prompts than micro-batches each in as many parts as there are for it."""
    if not requests or len(requests) >= pipelines.micro_batches:
        return [[(request, request.tokens()) for request in group] for group in _cut(requests, pipelines.micro_batches)]
    pieces: list[PromptPieces] = []
    for at, request in enumerate(requests):
        share = part(at, len(requests), pipelines.micro_batches)
        parts = min(share.stop - share.start, len(request.prompt))
        ends = [len(request.prompt) * piece // parts for piece in range(parts + 1)]
        pieces += [[(request, Tokens(request.number, request.prompt[:end], begin))] for begin, end in pairwise(ends)]
    return pieces


def _news(requests: Sequence[Request]) -> PromptPieces:
    return [(request, request.tokens()) for request in requests if not request.done]


def _step(pipelines: Pipelines, batches: Sequence[Sequence[PromptPieces]], backs: Backs) -> None:
    """Micro-batches of all replicas through their stages; whoever has all its tokens in the cache gets the next one."""
    next_tokens: dict[int, tuple[int, float]] = {}
    for stages, own in zip(pipelines.stages, batches, strict=True):
        for pieces in own:
            next_tokens |= _flow(pipelines.gpus, stages, pieces, backs)
    shares = pipelines.gpus.control.gather(next_tokens)
    everywhere: dict[int, tuple[int, float]] = {}
    for number, (token, time) in (item for share in shares or () for item in share.items()):
        everywhere[number] = token, max(time, everywhere.get(number, (0, 0.0))[1])  # of GPUs on several ranks
    everywhere = pipelines.gpus.control.bcast(everywhere)
    for own in batches:
        for request, tokens in (piece for pieces in own for piece in pieces):
            request.cached = len(tokens.tokens)
            if request.cached == len(request):
                token, time = everywhere[request.number]
                request.new.append(token)
                request.times.append(time)


def _flow(gpus: Gpus, stages: Sequence[Stage], pieces: PromptPieces, backs: Backs) -> dict[int, tuple[int, float]]:
    """One micro-batch through all stages: the tokens that a hosted GPU of the last one found, and when."""
    sequences, group = [tokens for _, tokens in pieces], backs.batches[pieces[0][0].number]
    xs: list[np.ndarray] | None = None
    next_tokens: dict[int, tuple[int, float]] = {}
    ready = max((time for request, _ in pieces for time in request.times[-1:]), default=0.0)
    with ExitStack() as scopes:
        for at, stage in enumerate(stages):
            scopes.enter_context(stage.gpus.scope())
            batch = _batch(stage, sequences)
            for gpu in stage.gpus.mine:  # for the last stage, which finds the tokens that this one is to compute
                gpu.counters.bubble_seconds += max(ready - gpu.now, 0.0)
                gpu.host_clock = max(gpu.host_clock, ready)
            if at == 0 and group in backs.sent:
                arrive(stage.gpus, backs.sent.pop(group))
            if at:
                shape = (len(batch.tokens), stage.model.family.hidden)
                xs = arrive(stage.gpus, pass_on(gpus, stages[at - 1].gpus, stage.gpus, xs or [], shape))
            if stage.gpus.mine:
                xs = through(stage.gpus, stage.model, batch, xs)
        last = stages[-1]
        ended = [number for number, (request, tokens) in enumerate(pieces) if len(tokens.tokens) == len(request)]
        if not ended:
            return next_tokens
        ids: list[np.ndarray] = []
        if last.gpus.mine:
            ahead = head_of(last.gpus, last.model, batch, xs or [])
            ids = [tokens[: len(pieces)] for tokens in ahead.ids]
            next_tokens = _found(gpus, last, pieces, ahead)
        if len(stages) > 1:
            backs.sent[group] = pass_on(gpus, last.gpus, stages[0].gpus, ids, (len(pieces),), np.float32)
    return next_tokens


def _batch(stage: Stage, sequences: Sequence[Tokens]) -> Prompts | PromptParts | NewTokens:
    if all(sequence.begin == 0 for sequence in sequences):
        return Prompts(stage.model, stage.cache, sequences)
    if any(len(sequence.tokens) > sequence.begin + 1 for sequence in sequences) or not all(
        sequence.begin for sequence in sequences
    ):
        return PromptParts(stage.gpus, stage.model, stage.cache, sequences)
    blocks = [stage.cache.pages.needed(len(sequence.tokens)) for sequence in sequences]
    batch = NewTokens(stage.gpus, stage.model, stage.cache, len(sequences), max(blocks), sum(blocks))
    batch.load(sequences)
    return batch


def _found(gpus: Gpus, last: Stage, pieces: PromptPieces, ahead: Ahead) -> dict[int, tuple[int, float]]:
    """UsageError where a logit is no number."""
    if gpus.payload and not np.isfinite(ahead.best[: len(pieces)]).all():
        raise UsageError("no token can be picked: a logit is infinite or not a number; --dtype float32 has most room")
    now = max(gpu.now for gpu in last.gpus.mine)
    tokens = ahead.ids[0][: len(pieces)] if gpus.payload else np.zeros(len(pieces))
    return {request.number: (int(token), now) for (request, _), token in zip(pieces, tokens, strict=True)}
