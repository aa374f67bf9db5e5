"""The experts of one token in decode.

split: every expert is cut over the whole mesh, as an MLP is. Those that the token takes are multiplied side by side,
the shared one with them, and their outputs are added up at each core before they are summed along x: two allreduces,
whatever k is, and all cores have work whatever the token takes.

    E_y --gate|up of all k--> y: 2 k F_x --silu, share--> F_x --down of all k, added--> x: E_y
"""

import numpy as np

from meshrt.programs.mesh.gate import Choice, timed
from meshrt.programs.mesh.linear import along, second
from meshrt.programs.mesh.meshgemm import zeros
from meshrt.programs.mesh.regions import Region
from meshrt.programs.mesh.swiglu import swiglu
from meshrt.programs.mesh.weights import Experts


def experts_of_token(region: Region, w: Experts, choice: Choice, normed: np.ndarray) -> np.ndarray:
    """E_y of rms(x), [bh, bw, rows, Et], to the sum of what its experts make of it, in order of their number."""
    assert region.mixture is not None
    tally = region.mixture.tally
    with timed(region, "decode", "experts"):
        result = _split(region, w, choice, normed)
    tally.used, tally.steps = tally.used + 1, tally.steps + 1
    return result


def _split(region: Region, w: Experts, choice: Choice, normed: np.ndarray) -> np.ndarray:
    block, sums = region.block, region.sums
    mlps = [w.rounds[number] for number in choice.experts]
    shares: list[np.ndarray | None] = [choice.shares[:, :, None, at : at + 1] for at in range(len(mlps))]
    if w.shared is not None:
        mlps.append(w.shared)
        shares.append(None if choice.shared is None else choice.shared[:, :, None])
    ends = np.cumsum([mlp.up.first.shape[-1] for mlp in mlps])
    packet = zeros(block, "products of experts", (mlps[0].up.first.shape[3], int(ends[-1])))
    for mlp, end in zip(mlps, ends, strict=True):
        along(block, normed, mlp.up.first, False, packet[..., end - mlp.up.first.shape[-1] : end])
    packet = sums.y(packet)
    total, others = None, []
    for mlp, share, first in zip(mlps, shares, np.split(packet, ends[:-1], axis=-1), strict=True):
        hidden = swiglu(block, second(block, sums, mlp.up, first))
        if share is not None:
            hidden *= share
            block.elementwise(hidden)
        turned = mlp.down.turned[0]
        if mlp.down.whole and turned:
            total = along(block, hidden, mlp.down.first, turned, total)
        else:
            product = (sums.x if turned else sums.y)(along(block, hidden, mlp.down.first, turned))
            others.append(second(block, sums, mlp.down, product))
    if total is not None:
        others.insert(0, sums.x(total))
    result, *rest = others
    for other in rest:
        result += other
        block.elementwise(other)
    return result
