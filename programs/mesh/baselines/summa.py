"""C = A B by broadcasts: SUMMA, and GEMM by allgather, to be measured against MeshGEMM (waferllm, section 5.1).

Both take A (M x K) and B (K x N) cut `square`, as [bh, bw, rows, columns, Mt, Kt] and [.., Kt, Nt], and give C in
float32, cut the same way. A core holds A, B and C at home.

    SUMMA       P steps: A's column k of tiles is broadcast along x, B's row k along y; C_sub += A_k B_k.
                One pair of panels is in use, and one coming in.
    allgather   all of a row's A and all of a column's B come first, then one product: O(1/N) of A and B at a core

Routes per core: N for each axis where the tables have room for that many; else software relays (broadcast.py).
"""

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.collectives import broadcast
from meshrt.mesh.collectives.broadcast import Broadcast, Spread
from meshrt.mesh.repeat import drifting
from meshrt.mesh.wires.receiving import receive
from meshrt.programs.mesh.meshgemm import begin_product, zeros

SETTLED = 8  # steps after which a chain, whose steps are all alike, goes on as it will


def summa(
    block: Block, along_x: Spread, along_y: Spread, a: np.ndarray, b: np.ndarray, lockstep: bool = False,
    sample: int | None = None,
) -> np.ndarray:  # fmt: skip
    """C = A B by P broadcasts on each axis (Scalable Universal Matrix Multiplication Algorithm, 1997), pipelined.

    A step's owners send before its product of the step before, and who relays does so after it. Measured on wse2 with
    as few segments as the tables allow, against a chain in which every core relays (`--segment 1`): 12,203 against
    14,413 cycles on 64 x 64 cores with tiles of 2 x 2, 45,494 against 56,079 with 6 x 6. Relaying before the product
    takes 139 and 209 cycles more with segments, and as many with the chain.

    With a `sample`, by shape, so many stretches of either half of the loop stand for all of it: a step is the shorter,
    in lockstep, the nearer its owners are to the middle, and steps are alike only after those of a segment.
    """
    (rows, columns), steps = a.shape[2:4], block.mesh.height * a.shape[2]
    a_panels, b_panels = (
        [block.empty(f"panel of {name}", (*tiles, *array.shape[4:]), array.dtype) for _ in range(2)]
        for name, array, tiles in (("A", a, (rows, 1)), ("B", b, (1, columns)))
    )

    def start(step: int) -> tuple[Broadcast, ...]:
        (x, column), (y, row) = divmod(step, columns), divmod(step, rows)
        return (
            broadcast.start(block, along_x, x, a[:, :, :, column : column + 1], a_panels[step % 2]),
            broadcast.start(block, along_y, y, b[:, :, row : row + 1], b_panels[step % 2]),
        )

    def multiply(current: tuple[Broadcast, ...], upcoming: tuple[Broadcast, ...] = ()) -> None:
        a_panel, b_panel = (broadcast.finish(block, broadcasting) for broadcasting in current)
        block.matmul(a_panel, b_panel, c)
        for broadcasting in upcoming:
            broadcast.relay(block, broadcasting)
        if lockstep:
            for broadcasting in upcoming:
                broadcast.finish(block, broadcasting)
            block.meet()

    c = zeros(block, "C", (*a.shape[2:-1], b.shape[-1]))
    upcoming = start(0)
    for broadcasting in upcoming:
        broadcast.relay(block, broadcasting)
    begin_product(block, steps)
    period = max(along_x.longest * columns, along_y.longest * rows, SETTLED)
    for step in drifting(block, steps - 1, sample and 2 * sample, period):
        block.step()
        current, upcoming = upcoming, start(step + 1)
        multiply(current, upcoming)
    if steps > 1:
        block.step()
    multiply(upcoming)
    return c


def allgather_gemm(block: Block, along_x: Spread, along_y: Spread, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C = A B in one local product, once every core has its row's A and its column's B, each tile in its place."""
    (rows, columns, mt, kt), nt = a.shape[2:], b.shape[-1]
    steps = along_y.n * rows
    begin_product(block, steps)
    if steps > 1:
        block.step(steps)  # a tile of A and one of B come in at each
    row = block.empty("A of the row", (rows, mt, along_x.n, columns, kt), a.dtype)
    column = block.empty("B of the column", (columns, along_y.n, rows, b.shape[4], nt), b.dtype)
    flights = [
        broadcast.start_allgather(block, along_x, a, row.transpose(0, 1, 4, 2, 5, 3, 6)),
        broadcast.start_allgather(block, along_y, b, column.transpose(0, 1, 3, 4, 2, 5, 6)),
    ]
    for flight in flights:
        receive(block, flight)
    lead = block.lead
    return block.matmul(row.reshape(*lead, rows, 1, mt, -1), column.reshape(*lead, 1, columns, -1, nt))
