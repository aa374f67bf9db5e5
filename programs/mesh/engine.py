"""LLaMA on the mesh as an engine: prefill, the move to decode's layout and maybe to other cores, decode."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from meshrt.errors import LimitError, UsageError
from meshrt.mesh import state
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.rings import Rings, interleaved_rings, rings_in_regions
from meshrt.mesh.mesh import Mesh, tile_ranks
from meshrt.models.config import Config
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.programs.generation.prompt import Prompt
from meshrt.programs.mesh.cache import TokenCache
from meshrt.programs.mesh.chunks import Chunks, best_groups, cut_dimensions, group_width
from meshrt.programs.mesh.climb import fill_evenly, spread_evenly
from meshrt.programs.mesh.crossings import hand_back
from meshrt.programs.mesh.decode import decode
from meshrt.programs.mesh.experts.mixture import Mixture
from meshrt.programs.mesh.nexttoken import PromptScores, TokenScores
from meshrt.programs.mesh.options import MeshOptions
from meshrt.programs.mesh.placement import move_weights
from meshrt.programs.mesh.prefill import prefill
from meshrt.programs.mesh.published.onehead import check_mesh
from meshrt.programs.mesh.regions import Region, arrange, check_alike, install, open_regions
from meshrt.programs.mesh.weights import NO_WEIGHTS, MeshWeights, load_weights
from meshrt.ranks.snapshot import Snapshot, SnapshotPart, trusted
from meshrt.records import dataclass


@dataclass(eq=False)
class MeshEngine:
    """A model on the regions that are at work, which `chunks` say how it is cut on. `stack` has all that is installed.

    `elsewhere` opens the regions that decode, with or without their weights, where they are others than those of
    prefill; `anew` loads the weights of decode in place of those of prefill, where nothing moves them. `caches` are all
    that hold memory, and `spent` the cycles of layers in prefill and in decode, by shape.
    """

    block: Block
    config: Config
    how: MeshOptions
    mixture: Mixture | None
    limit: int
    stack: ExitStack
    chunks: Chunks
    regions: list[Region]
    caches: list[TokenCache]
    elsewhere: Callable[[Checkpoint | None], tuple[list[Region], Chunks]] | None
    anew: Callable[[list[Region]], list[Region]] | None
    spent: tuple[Any, Any]
    begun: bool = False  # elsewhere: what decodes is there
    steps: int = 0

    def fill(self, context: int) -> None:
        for region in self.regions:
            fill_evenly(region.cache, context)

    def prefill(self, ids: Sequence[int], every: bool) -> PromptScores:
        block, how, config = self.block, self.how, self.config
        with ExitStack() as routes:
            in_parts = self.mixture is not None and how.system == "waferllm"
            rings = [
                None if in_parts else routes.enter_context(interleaved_rings(region.block)) for region in self.regions
            ]
            with ExitStack() as inner, block.phase("prefill") as phase:
                phase.tokens = len(ids)
                ready = install(inner, self.regions, how.programs, self.chunks, how.phases, rings, how.steps_run)
                scores = prefill(
                    ready, config, self.chunks, np.array(ids), every, how.layers_run, self.spent[0], how.layers_only
                )
                block.follow(ready[-1].block)
            if self.anew is not None and self.limit > 1:
                self.regions, ready = self.anew(self.regions), []
                spread_evenly(self.regions[0].cache)
            elif self.limit > 1:  # else there is nothing to decode
                with block.phase("re-placement"):
                    self.regions = [
                        replace(region, weights=self._moved(region, ring))
                        for region, ring in zip(self.regions, rings, strict=True)
                    ]
                    if self.elsewhere is None:
                        for region in self.regions:
                            spread_evenly(region.cache)
        last_block = self.regions[-1].block
        return PromptScores(block, last_block, self.chunks, how.phases, config.vocab_size, len(ids), scores)

    def _moved(self, region: Region, rings: Rings | None) -> MeshWeights:
        """Weights as decode has them."""
        grid = None if self.mixture is None else self.mixture.grid
        with ExitStack() as own:
            rings = rings or own.enter_context(interleaved_rings(region.block))
            inner = None
            if grid is not None:
                inner = own.enter_context(rings_in_regions(region.block, grid.width, grid.height))
            how = self.how
            steps = how.steps_run if how.system == "waferllm" else None  # of the others: those of products
            return move_weights(region.block, rings, region.weights, how.layers_run, inner, steps)

    def change_cores(self) -> None:
        """Let other cores decode than those of prefill: weights and cache go there."""
        from meshrt.programs.mesh.othercores import change_cores  # few runs need it

        assert self.elsewhere is not None
        with self.block.phase("change of cores"):
            after, cut = self.elsewhere(None)
            mesh = after[0].block.mesh
            cells = arrange(self.block.device, mesh.width, mesh.height, len(after))
            change_cores(self.config, self.regions, after, cells, self.chunks, cut, self.how.layers_run)
            self.regions, self.chunks = after, cut
            self.caches += [region.cache for region in after]

    @contextmanager
    def decoding(self) -> Iterator[None]:
        how = self.how
        if self.elsewhere is not None and not self.begun:
            self.change_cores()
        self.regions = install(
            self.stack, self.regions, how.programs, self.chunks, how.phases_of_decode, None
        )  # fmt: skip
        with self.block.phase("decode") as phase:
            if not self.begun:
                self.regions[0].block.follow(self.block)
            self.begun = True
            yield
            self.block.follow(self.regions[0].block)
            phase.tokens = self.steps

    def step(self, token: int, position: int) -> TokenScores:
        self.steps += 1
        fused = self.how.allreduces == "fused"
        layer: Callable[..., np.ndarray] | None = None
        if self.how.as_published:
            from meshrt.programs.mesh.published.decode import published_layer  # few runs need it

            layer = published_layer
        scores = decode(
            self.regions, self.config, self.chunks, token, position, fused, self.how.layers_run, self.spent[1],
            self.how.as_published and self.how.layers_only, layer,
        )  # fmt: skip
        last = self.regions[-1]
        return TokenScores(last.block, self.chunks, last.sums, self.config.vocab_size, scores)

    def took(self, token: int) -> None:
        if self.steps:
            hand_back(self.regions[-1].block, self.regions[0].block, self.regions[0].crossing)

    def describe(self) -> tuple[dict[str, Any], dict[str, SnapshotPart]]:
        facts, parts = state.describe(self._blocks())
        facts |= {
            "spent": self.spent,
            "caches": [{"held": cache.held.tolist(), "moved": cache.moved} for cache in self.caches],
        }
        if self.mixture is not None:
            facts["experts"] = self.mixture.tally.as_facts()
        return facts, parts | self._rows()

    def restore(self, snapshot: Snapshot, new: Sequence[int]) -> None:
        state.restore(self._blocks(), snapshot)
        snapshot.fill(self._rows())
        self.steps = len(new) - 1
        if self.mixture is not None:
            self.mixture.tally.restore(snapshot.facts["experts"])
        for cycles, saved in zip(self.spent, snapshot.facts["spent"], strict=True):
            if cycles is not None:
                cycles.extend(map(float, saved))

    def _rows(self) -> dict[str, SnapshotPart]:
        """What the caches' rows hold, if there are payloads, as bytes: npy files have no name for bfloat16."""
        parts = {}
        for at, cache in enumerate(region.cache for region in self.regions if region.block.payload):
            data = cache.data[:, :, : int(cache.held.max())]
            parts[f"cache {at}"] = SnapshotPart(data.view(np.uint8), cache.block.mesh.y0, cache.block.mesh.x0)
        return parts

    def _blocks(self) -> list[Block]:
        """All cores that decode goes on with, those that are at work between two tokens first."""
        blocks = [region.block for region in self.regions]
        blocks += [region.crossing.border for region in self.regions if region.crossing is not None]
        return blocks if any(block is self.block for block in blocks) else [*blocks, self.block]


@contextmanager
def open_engine(
    block: Block, config: Config, source: Checkpoint | None, how: MeshOptions, mixture: Mixture | None,
    dtype: np.dtype[Any], prompt: Prompt, limit: int, snapshot: Snapshot | None,
) -> Iterator[MeshEngine]:  # fmt: skip
    """The model on the cores that begin; or, where a state was found, on those that decode. LimitError, UsageError.

    What the cores have no room for is refused before a weight is read.
    """
    check_layers(config, how)
    mesh, cores, regions = block.mesh, how.decode_cores(block.mesh), how.regions_of_decode
    moves = bool(prompt.ids) and limit > 1 and (*cores, regions) != (mesh.width, mesh.height, how.regions)
    # What decode's cores do not take is refused before prefill, not after.
    meshes = (mesh, Mesh(*cores)) if moves else (mesh,)
    chunks = cut_model(block, config, how, meshes)
    tile_ranks(*cores, block.control.size, "--decode-mesh")
    room = max(chunks.rows * -(-len(prompt.ids) // chunks.sides), (len(prompt) + limit) // mesh.height + 1) + 2
    begun, apart = snapshot is not None, how.compensators == "apart"
    if config.quantized and moves and cores != (mesh.width, mesh.height):
        raise UsageError(
            "--decode-mesh: tiles of packed codes are not cut anew on the way from prefill to decode; let both have"
            f" {mesh.width}x{mesh.height} cores, or run the model that this one was made from"
        )
    opened_on = partial(open_regions, config=config, dtype=dtype, room=room, kv=how.kv, mixture=mixture, apart=apart)
    opened_to_begin = partial(opened_on, turned=begun, as_published=how.as_published)
    with ExitStack() as stack:

        def elsewhere(source: Checkpoint | None) -> tuple[list[Region], Chunks]:
            decode_block = block.another("decode", *cores)
            cut = cut_dimensions(decode_block, config, chunks.groups)
            return opened_on(stack, decode_block, cut, source, regions, name="decode region", turned=True), cut

        if block.payload:
            with way_out(), ExitStack() as trial:
                opened_to_begin(trial, replace(block, payload=False), chunks, None, how.regions)
        prefill_source = None if begun and moves else source
        with way_out():
            opened = opened_to_begin(stack, block, chunks, prefill_source, how.regions)
        caches = [region.cache for region in opened]
        if begun and moves:
            opened, chunks = elsewhere(source)
            caches += [region.cache for region in opened]
        if snapshot is not None:
            hold(caches, snapshot)
        spent: tuple[Any, Any] = (None, None) if block.payload else ([], [])
        opener = elsewhere if moves else None

        def anew(regions: list[Region]) -> list[Region]:
            (region,) = (replace(region, weights=NO_WEIGHTS) for region in regions)
            regions.clear()  # nothing is to hold the weights of prefill any more
            opened.clear()
            weights = load_weights(block, config, chunks, source, dtype, region.layers, turned=True)
            return [replace(region, weights=weights)]

        reload = anew if how.as_published else None
        yield MeshEngine(
            block, config, how, mixture, limit, stack, chunks, opened, caches, opener, reload, spent, begun
        )


def check_layers(config: Config, how: MeshOptions) -> None:
    """UsageError for layers that cannot stand for others, or cannot have such a cache."""
    if how.layers_run is not None:
        check_alike(config, (how.regions, how.regions_of_decode), how.layers_run)
    if config.windows and how.kv == "roundrobin":
        raise UsageError(
            "--kv roundrobin keeps tokens out of order, and the model has layers that see the last tokens only: take"
            " --kv shift or concat"
        )


def cut_model(block: Block, config: Config, how: MeshOptions, meshes: Sequence[Mesh]) -> Chunks:
    """The model in chunks, and groups of heads that all of these meshes can have. UsageError."""
    groups = best_groups(meshes, config) if how.head_groups is None else how.head_groups
    for mesh in meshes:
        group_width(mesh, config, groups)
    chunks = cut_dimensions(block, config, groups, not how.as_published)
    if how.as_published:
        check_mesh(block, chunks)
    return chunks


@contextmanager
def way_out() -> Iterator[None]:
    """What a model that has no room can do beside what the memory says."""
    try:
        yield
    except LimitError as error:
        raise type(error)(f"{error}; or share the layers out over several meshes with --regions") from error


def hold(caches: Sequence[TokenCache], snapshot: Snapshot) -> None:
    """Let caches that are empty have memory for what they held. LimitError."""
    with trusted(snapshot):
        for cache, saved in zip(caches, snapshot.facts["caches"], strict=True):
            cache.add(np.array(saved["held"], np.int64))
            cache.moved = int(saved["moved"])
