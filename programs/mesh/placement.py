"""From prefill's layout to decode's: some matrices are placed anew over the mesh (waferllm, section 4.2).

W_O and W_down, and those factors that linear.py says, get their rows along x, tile by tile over the diagonal.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.collectives.rings import Rings
from meshrt.mesh.collectives.shifts import start_shift
from meshrt.mesh.repeat import sampled
from meshrt.mesh.wires.receiving import receive
from meshrt.programs.mesh.codes.packed import Packed, Tiles
from meshrt.programs.mesh.linear import Linear
from meshrt.programs.mesh.meshgemm import coming_in, in_flight
from meshrt.programs.mesh.weights import MeshMlp, MeshWeights


def move_weights(
    block: Block, rings: Rings, weights: MeshWeights, sample: int | None = None, inner: Rings | None = None,
    steps: int | None = None,
) -> MeshWeights:  # fmt: skip
    """Re-place what decode has turned, W_O and W_down above all, in every layer: rows along x, columns along y. `inner`
    are the rings inside regions of experts, where there are such. With `sample` and `steps`, by shape, only so many
    layers are moved, and in as many steps each, and the last is counted for the others.
    """
    on_all, inside = (partial(turn, block, each, sample=steps) for each in (rings, inner or rings))
    layers = list(weights.layers)
    for number in sampled(block, len(layers), sample):
        layer = layers[number]
        layers[number] = replace(
            layer,
            qkv=turn_linear(on_all, layer.qkv),
            out=turn_linear(on_all, layer.out),
            mlp=turn_mlp(on_all, layer.mlp)
            if isinstance(layer.mlp, MeshMlp)
            else replace(
                layer.mlp,
                rounds=tuple(turn_mlp(inside, mlp) for mlp in layer.mlp.rounds),
                shared=layer.mlp.shared and turn_mlp(on_all, layer.mlp.shared),
            ),
        )
        block.console.progress("moving weights", number + 1, len(weights.layers))
    return replace(weights, layers=tuple(layers))


Turn = Callable[[np.ndarray], np.ndarray]  # of tiles, over the diagonal of the mesh or of each region


def turn_mlp(turn: Turn, w: MeshMlp) -> MeshMlp:
    return replace(w, up=turn_linear(turn, w.up), down=turn_linear(turn, w.down))


def turn_linear(turn: Turn, w: Linear) -> Linear:
    """Matrices as decode has them."""
    first_turned, second_turned = w.turned
    return replace(
        w,
        first=turn_tiles(turn, w.first) if first_turned else w.first,
        parts=tuple(
            replace(part, second=turn(part.second)) if second_turned and part.second is not None else part
            for part in w.parts
        ),
    )


def turn_tiles(turn: Turn, tiles: Tiles) -> Tiles:
    """Of codes the packed bytes go, as they lie."""
    return tiles.moved(turn(tiles.data)) if isinstance(tiles, Packed) else turn(tiles)


def turn(block: Block, rings: Rings, tiles: np.ndarray, sample: int | None = None) -> np.ndarray:
    """Every tile (x, y) goes to (y, x), by ring shifts alone: [bh, bw, rows, columns, *tile], P x P tiles in all.

    All rows go round their rings, and so do all columns, at first with nothing in them. At every step the tile that
    comes by the diagonal changes from its row's ring to its column's. A column's places pass the diagonal once each,
    and after P steps each is where its tile belongs: six route entries and two buffers, whatever the size.
    """
    mesh, (rows, columns) = block.mesh, tiles.shape[2:4]
    y = np.arange(mesh.height * rows).reshape(mesh.height, 1, rows, 1)[mesh.y0 : mesh.y0 + block.lead[0]]
    x = np.arange(mesh.width * columns).reshape(1, mesh.width, 1, columns)[:, mesh.x0 : mesh.x0 + block.lead[1]]
    side = len(rings.y.places)  # of the mesh, or of each of its regions
    diagonal = np.broadcast_to(y % side == x % side, tiles.shape[:4])
    row, column = (in_flight(block, "tile of the row", tiles), in_flight(block, "tile of the column", tiles))
    row_next, column_next = coming_in(block, "tile of the row", tiles), coming_in(block, "tile of the column", tiles)
    column[...] = 0
    for _ in sampled(block, side, sample):
        column[diagonal] = row[diagonal]
        flights = start_shift(block, rings.x, row, row_next), start_shift(block, rings.y, column, column_next)
        receive(block, *flights)
        row, row_next, column, column_next = row_next, row, column_next, column
    tiles[...] = column
    return tiles
