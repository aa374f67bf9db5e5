"""The experts of a prompt's tokens in regions of their own, or, with tokens that move, over the whole mesh one by one.

Each expert has a fixed number of places for tokens, its capacity, cut over the rows of its region; what there is no
room for waits for another pass, or is dropped where that is asked for: later tokens first. In a pass

    a token's row of cores -- along y --> the row that has its place, once for each of its experts
    the columns of the mesh -- along x --> the columns of the region: E is cut anew
    MLP by MeshGEMM on rings inside the region, times the share
    and back the same way; at home, what a token's experts made is kept apart until all of it is there

and then added in order of the experts' numbers, so that neither the way nor the order of arrival changes a bit. For
the places, the counts of all rows above are added down the columns, core by core, and the totals go back up: all cores
then know how many passes it takes. The emulator's host knows the routing of all tokens, to plan for the packets.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.collectives.rings import rings_in_regions
from meshrt.mesh.wires import fabric, routes, software, tally
from meshrt.mesh.wires.tables import installed
from meshrt.programs.mesh.activations import swiglu
from meshrt.programs.mesh.chunks import Chunks
from meshrt.programs.mesh.experts.dispatch import PieceMoves, carry
from meshrt.programs.mesh.experts.gate import PromptChoice, block_rows, timed
from meshrt.programs.mesh.experts.grid import RegionGrid, whole
from meshrt.programs.mesh.experts.heat import Heat, TrafficPart, no_heat, told
from meshrt.programs.mesh.linear import product
from meshrt.programs.mesh.meshgemm import meshgemm, zeros
from meshrt.programs.mesh.regions import Region
from meshrt.programs.mesh.weights import MeshExperts, MeshMlp
from meshrt.records import dataclass


@dataclass(frozen=True)
class ExpertPlaces:
    """Where tokens are at home, and where an expert's places are: sizes of a core, and of a tile in a region."""

    grid: RegionGrid
    rows: int  # of tiles at home
    length: int  # Lt at home
    width: int  # columns * Et at home
    embedding: int  # E
    top: int
    tokens: int  # Ct, of a tile in a region

    @property
    def of_expert(self) -> int:
        return self.grid.sides * self.tokens

    @property
    def of_core(self) -> int:
        return self.grid.tile_rows * self.tokens

    @property
    def of_tile(self) -> int:
        """Et of a tile in a region."""
        return -(-self.embedding // self.grid.sides)


def in_regions(
    region: Region, chunks: Chunks, w: MeshExperts, number: int, choice: PromptChoice, normed: np.ndarray
) -> np.ndarray:
    """What the experts make of rms(X), L_y E_x; the shared one apart."""
    block, mixture = region.block, region.mixture
    assert mixture is not None
    grid, tally = mixture.grid or whole(block.mesh), mixture.tally
    rows, columns, length, et = normed.shape[2:]
    hidden = int((chunks.embedding >= 0).sum())
    places = ExpertPlaces(grid, rows, length, columns * et, hidden, w.top, -(-mixture.capacity // grid.sides))
    with timed(region, "prefill", "dispatch"):
        counts = add_up_counts(block, w, choice)
        tiles = with_choice(block, choice, normed, places)
    made = zeros(block, "outputs of experts, apart", (rows * length * w.top, columns * et))
    experts, heat = choice.experts.reshape(-1, w.top), no_heat(block)
    for at, mlp in enumerate(w.rounds):
        of_round = range(at * grid.count, min((at + 1) * grid.count, w.count))
        wanted = counts[of_round.start : of_round.stop]
        passes = -(-int(wanted.max()) // places.of_expert)
        if mixture.drop:
            passes = min(passes, 1)
            tally.dropped[mixture.numbers[number]] += int(np.maximum(wanted - places.of_expert, 0).sum())
        tally.passes[mixture.numbers[number]] += passes
        for turn in range(passes):
            one_pass(region, mlp, tiles, made, *members(experts, of_round, turn, places), of_round, places, heat)
            tally.places += places.of_expert * len(of_round)
    tally.traffic.append({"layer": number} | told(block, heat))
    with timed(region, "prefill", "combine"):
        by_token = made.reshape(*block.lead, rows, length, w.top, columns, et)
        out = by_token[..., 0, :, :].copy()
        for at in range(1, w.top):
            out += by_token[..., at, :, :]
        block.elementwise(out, w.top)
        return block.memory.keep("outputs of experts", np.ascontiguousarray(out.swapaxes(3, 4)))


def add_up_counts(block: Block, w: MeshExperts, choice: PromptChoice) -> np.ndarray:
    """How many tokens each expert has, int [n], as the mesh finds it: row by row down the columns, and back up."""
    mesh = block.mesh
    of_row = (choice.experts[..., None] == np.arange(w.count)).sum(axis=(1, 2)).reshape(mesh.height, -1, w.count)
    of_row = of_row.sum(axis=1).astype(np.int32)
    own = np.broadcast_to(block_rows(block, of_row)[:, None], (*block.lead, w.count)).copy()
    total = block.memory.keep("tokens of each expert", own)
    with installed(block, "y", routes.chain) as channel:
        for row in range(mesh.height - 1):
            below = np.arange(mesh.height) == row + 1
            fabric.transfer(block, channel, total, total, positions=np.roll(below, -1), combine=np.add)
            software.stage(block, channel, w.count, below)
            fabric.forget(block, channel)
    with installed(block, "y", routes.multicast, mesh.height - 1) as channel:
        total = fabric.transfer(block, channel, total, total)
    return total[0, 0].copy() if block.payload else np.asarray(of_row.sum(axis=0))


def with_choice(block: Block, choice: PromptChoice, normed: np.ndarray, places: ExpertPlaces) -> np.ndarray:
    """Tokens as they travel, [bh, bw, rows * Lt, columns * Et + 2 top]: their experts' numbers and shares in front."""
    tokens = normed.swapaxes(3, 4).reshape(*block.lead, places.rows * places.length, -1)
    by_core = choice.experts.reshape(block.mesh.height, -1, places.top).astype(np.float32)
    experts = np.broadcast_to(block_rows(block, by_core)[:, None], (*tokens.shape[:3], places.top))
    shares = np.broadcast_to(choice.shares.reshape(*choice.shares.shape[:2], -1, places.top), experts.shape)
    return block.memory.keep("tokens with their experts", np.concatenate([experts, shares, tokens], axis=-1))


def members(
    experts: np.ndarray, of_round: range, turn: int, places: ExpertPlaces
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Of each expert's tokens, those of a pass: their numbers, and which of a token's experts it is. The host's."""
    tokens, choices = [], []
    for number in of_round:
        token, at = np.nonzero(experts == number)
        part = slice(turn * places.of_expert, (turn + 1) * places.of_expert)
        tokens.append(token[part])
        choices.append(at[part])
    return tokens, choices


def one_pass(
    region: Region, mlp: MeshMlp, tiles: np.ndarray, made: np.ndarray, tokens: list[np.ndarray],
    choices: list[np.ndarray], of_round: range, places: ExpertPlaces, heat: Heat,
) -> None:  # fmt: skip
    """Some tokens to the experts of a round, and what these make of them, into `made`."""
    block, mixture, grid = region.block, region.mixture, places.grid
    assert mixture is not None and mixture.dispatch != "padded" and mixture.dispatch != "dense"
    way = mixture.dispatch
    across = grid.columns * places.of_core  # places of all regions that lie across a core's row
    down, recut = along_y(tokens, places), along_x(places)
    go = partial(carry, block, way, sample=mixture.steps)
    with moved(region, "dispatch", tokens, places, heat):
        came = go("y", tiles, down, across, pairs=heat.pairs["dispatch"])
        shares = own_shares(block, came, of_round, places)
        x = np.ascontiguousarray(came[..., 2 * places.top :].reshape(*block.lead, grid.columns, places.of_core, -1))
        del came
        x = block.memory.keep("tokens for regions", x.swapaxes(3, 4).reshape(*block.lead, -1, places.of_core).copy())
        x = go("x", x, recut, grid.tile_columns * places.of_tile)
    with timed(region, "prefill", "experts"):
        shape = grid.tile_columns, places.of_tile, grid.tile_rows, places.tokens
        x = x.reshape(*block.lead, *shape).transpose(0, 1, 4, 2, 5, 3)
        x = multiply(
            block, grid, mlp, block.memory.keep("tokens of an expert", np.ascontiguousarray(x)), shares, mixture.steps
        )
        x = x.transpose(0, 1, 3, 5, 2, 4).reshape(*block.lead, -1, places.of_core)
    with moved(region, "combine", tokens, places, heat):
        x = block.memory.keep("outputs of a region", np.ascontiguousarray(x))
        x = go("x", x, recut.back(), grid.columns * places.width)
        x = x.reshape(*block.lead, grid.columns, -1, places.of_core).swapaxes(3, 4)
        x = block.memory.keep("outputs of regions", x.reshape(*block.lead, across, -1).copy())
        to = PieceMoves(down.to_core, down.to_place, down.core, down.place * places.top + np.concatenate(choices))
        made += go("y", x, to, made.shape[2], pairs=heat.pairs["combine"])
        block.elementwise(made)


def along_y(tokens: list[np.ndarray], places: ExpertPlaces) -> PieceMoves:
    """From home to the rows of cores that have the experts' places, in every column of the mesh."""
    grid, at_home, ways = places.grid, places.rows * places.length, []
    for number, token in enumerate(tokens):
        row, column = divmod(number, grid.columns)
        tile, slot = np.divmod(np.arange(len(token)), places.tokens)
        core, tile = np.divmod(tile, grid.tile_rows)
        to_place = column * places.of_core + tile * places.tokens + slot
        ways.append(np.stack([token // at_home, token % at_home, row * grid.height + core, to_place]))
    core, place, to_core, to_place = np.concatenate(ways, axis=1)
    return PieceMoves(core, place, to_core, to_place)


def along_x(places: ExpertPlaces) -> PieceMoves:
    """Every number of E, of all of a core's tokens for a region, from the mesh's columns to that region's."""
    grid, number, ways = places.grid, np.arange(places.embedding), []
    each = grid.tile_columns * places.of_tile
    for column in range(grid.columns):
        core, place = np.divmod(number, places.width)
        to_core, to_place = np.divmod(number, each)
        ways.append(np.stack([core, column * places.width + place, column * grid.width + to_core, to_place]))
    moves = np.concatenate(ways, axis=1)
    packet = np.cumsum(np.append(False, (np.diff(moves[[0, 2]], axis=1) != 0).any(axis=0)))
    return PieceMoves(moves[0], moves[1], moves[2], moves[3], packet)


def own_shares(block: Block, came: np.ndarray, of_round: range, places: ExpertPlaces) -> np.ndarray:
    """The shares of the tokens at a core's places, by what came with them: [bh, bw, rows, 1, Ct, 1] of its region."""
    grid = places.grid
    row, column = block.y[:, None] // grid.height, block.x // grid.width
    numbers, shares = np.split(came[..., : 2 * places.top], 2, axis=-1)
    by_region = (*block.lead, grid.columns, places.of_core, places.top)
    own = column[None, :, None, None, None]
    numbers, shares = (np.take_along_axis(part.reshape(by_region), own, axis=2)[:, :, 0] for part in (numbers, shares))
    expert = (of_round.start + row * grid.columns + column)[..., None, None]
    chosen = np.where(numbers == expert, shares, np.float32(0)).sum(axis=-1)
    block.elementwise(shares)
    return block.memory.keep("shares", chosen.reshape(*block.lead, grid.tile_rows, 1, places.tokens, 1))


def multiply(
    block: Block, grid: RegionGrid, w: MeshMlp, x: np.ndarray, shares: np.ndarray, sample: int | None
) -> np.ndarray:
    """The MLPs of all regions at once, each its own tokens."""
    with rings_in_regions(block, grid.width, grid.height) as rings:
        gemm = partial(meshgemm, block, rings, sample=sample)
        gate_up = product(block, gemm, x, w.up)
        del x
        hidden = swiglu(block, gate_up)
        del gate_up
        hidden *= shares
        block.elementwise(hidden)
        return product(block, gemm, hidden, w.down)


@contextmanager
def moved(
    region: Region, part: TrafficPart, tokens: list[np.ndarray], places: ExpertPlaces, heat: Heat
) -> Iterator[None]:
    """Note the bytes over links of a part, and those that had to go: of each token, for each of its experts."""
    block, mixture = region.block, region.mixture
    assert mixture is not None
    tally.settle(block)
    before = block.link_bytes.copy()
    with timed(region, "prefill", part):
        yield
    tally.settle(block)
    crossed = block.link_bytes - before
    heat.links[part] += crossed
    mixture.tally.moved += block.control.allreduce(int(crossed.sum()))
    mixture.tally.routed += sum(map(len, tokens)) * places.embedding * 4
