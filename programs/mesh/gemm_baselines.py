"""C = A B by broadcasts: SUMMA, and GEMM by allgather, to be measured against MeshGEMM (waferllm, section 5.1).

Both take A (M x K) and B (K x N) cut `square`, as [bh, bw, rows, columns, Mt, Kt] and [.., Kt, Nt], and give C in
float32, cut the same way. A core holds A, B and C at home.

    SUMMA       P steps: A's column k of tiles is broadcast along x, B's row k along y; C_sub += A_k B_k.
                One pair of panels is in use, and one coming in.
    allgather   all of a row's A and all of a column's B come first, then one product: O(1/N) of A and B at a core

Routes per core: N for each axis where the tables have room for that many; else software relays (meshrt/broadcast.py).
"""

from math import prod
from typing import Any

import numpy as np

from meshrt import broadcast, fabric
from meshrt.block import Block
from meshrt.broadcast import Broadcast, Spread
from meshrt.programs.mesh.meshgemm import add, tile_bytes


def summa(
    block: Block, along_x: Spread, along_y: Spread, a: np.ndarray, b: np.ndarray, lockstep: bool = False
) -> np.ndarray:
    """C = A B by P broadcasts on each axis (van de Geijn & Watts 1997), pipelined.

    A step's owners send before its product of the step before, and who relays does so after it. Measured on wse2 with
    as few segments as the tables allow, against a chain in which every core relays (`--segment 1`): 1,854 against 3,885
    cycles on 64 x 64 cores with tiles of 2 x 2, 18,883 against 29,264 with 6 x 6. Relaying before the product takes
    2,011 and 22,049 cycles with segments, and 6 and 38 cycles less than those of the chain.
    """
    (rows, columns), steps = a.shape[2:4], block.mesh.height * a.shape[2]
    a_panels, b_panels = (
        [np.empty((*array.shape[:2], *tiles, *array.shape[4:]), array.dtype) for _ in range(2)]
        for array, tiles in ((a, (rows, 1)), (b, (1, columns)))
    )

    def start(step: int) -> tuple[Broadcast, ...]:
        (x, column), (y, row) = divmod(step, columns), divmod(step, rows)
        return (
            broadcast.start(block, along_x, x, a[:, :, :, column : column + 1], a_panels[step % 2]),
            broadcast.start(block, along_y, y, b[:, :, row : row + 1], b_panels[step % 2]),
        )

    with (
        block.memory.hold("panels of A and B", 2 * (tile_bytes(a_panels[0]) + tile_bytes(b_panels[0]))),
        block.memory.hold("C", prod(a.shape[2:-1]) * b.shape[-1] * 4),
    ):
        c: Any = 0
        coming = start(0)
        for one in coming:
            broadcast.relay(block, one)
        for step in range(steps):
            now, coming = coming, start(step + 1) if step + 1 < steps else ()
            a_panel, b_panel = (broadcast.finish(block, one) for one in now)
            c = add(block, c, block.matmul(a_panel, b_panel))
            for one in coming:
                broadcast.relay(block, one)
            if lockstep:
                for one in coming:
                    broadcast.finish(block, one)
                block.meet()
    return np.asarray(c)


def allgather_gemm(block: Block, along_x: Spread, along_y: Spread, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C = A B in one local product, once every core has its row's A and its column's B."""
    width, height = block.mesh.width, block.mesh.height
    with (
        block.memory.hold("A of the row, B of the column", (width - 1) * tile_bytes(a) + (height - 1) * tile_bytes(b)),
        block.memory.hold("C", prod(a.shape[2:-1]) * b.shape[-1] * 4),
    ):
        flights = [broadcast.start_allgather(block, *what) for what in ((along_x, a), (along_y, b))]
        row, column = (fabric.receive(block, flight) for flight in flights)
        bh, bw, _, rows, columns, mt, _ = row.shape
        row = row.transpose(0, 1, 3, 5, 2, 4, 6).reshape(bh, bw, rows, 1, mt, -1)
        column = column.transpose(0, 1, 4, 2, 3, 5, 6).reshape(bh, bw, 1, columns, -1, b.shape[-1])
        return block.matmul(row, column)
