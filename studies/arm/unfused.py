"""Attention operator by operator, as the paper counts it: one head as wide as the model, all numbers of float32.

Queries, keys and values are read and results written in float32 (16 l h bytes, or 8 L h + 8 h); of scores, which are
float32 too, each of q k, a mask, softmax and p v reads or writes what there is (24 l l, or 24 L). Caches are taken to
hold an operator's numbers and none of the one before; so each is run alone, on one core.
"""

from dataclasses import replace
from math import ceil
from typing import Any

from meshrt.arm.cache import CachePieces, pieces
from meshrt.arm.core import Team
from meshrt.arm.device import GIB, N2X8
from meshrt.arm.isa import ld1, of, st1
from meshrt.arm.kernel import MicroKernel
from meshrt.arm.soc import Soc
from meshrt.programs.arm.simd.floats import product
from meshrt.programs.arm.simd.softmax import softmax
from meshrt.programs.arm.simd.vectors import sweep
from meshrt.programs.arm.tiles import UNITS, plan
from meshrt.studies.arm.published import HIDDEN
from meshrt.studies.arm.runs import number
from meshrt.studies.rows import Emulate
from meshrt.studies.sweep import RunJob

OPERATORS = ("q k", "mask", "softmax", "p v")
MASK = MicroKernel(
    "mask", (ld1(("limit", "nothing"), "limit"),),
    (ld1(("x",), "x"), ld1(("p",), "positions"), of("cmgt_4s", "p", "limit", "p"), of("bsl", "p", "x", "nothing"),
     st1(("p",), "y")), (),
)  # fmt: skip
# An L2 that holds all of an operator, and no SLC worth the name: what is read first and written goes to DRAM.
ROOMY = replace(N2X8, slc_bytes=1, clusters=tuple(replace(cluster, l2_bytes=GIB) for cluster in N2X8.clusters))
FLOATS = UNITS["fmla"]


def one_operator(
    soc: Soc, *, operator: int = 0, tokens: int = 1, seen: int = 1, heads: int = 1, kv_bytes: int = 4
) -> dict[str, Any]:
    """A program: one of OPERATORS by shape. `kv_bytes`: of a number of keys and values."""
    size = HIDDEN // heads
    rows = {"q": (tokens, 4), "k": (seen, kv_bytes), "v": (seen, kv_bytes), "out": (tokens, 4)}
    sizes = {name: (count, itemsize * HIDDEN) for name, (count, itemsize) in rows.items()}
    sizes["scores"] = (heads * tokens, 4 * seen)
    buffers = {name: soc.buffer(name, count * nbytes) for name, (count, nbytes) in sizes.items()}

    def all_of(name: str) -> CachePieces:
        count, nbytes = sizes[name]
        return [piece for row in range(count) for piece in pieces(buffers[name], row, nbytes)]

    def work(team: Team) -> None:
        for core, _ in team:
            for name in (("q", "k"), ("scores",), ("scores",), ("scores", "v"))[operator]:
                core.caches.read(all_of(name))
            core.caches.write(all_of("out" if operator == 3 else "scores"))
        tile = plan(FLOATS, soc.device.registers, 16)
        if OPERATORS[operator] == "mask":
            sweep(team, MASK, (heads, tokens), ceil(seen / 4), {}, {})
        elif OPERATORS[operator] == "softmax":
            softmax(team, tokens, seen, None, True)
        else:
            inner, columns = (size, seen) if operator == 0 else (seen, size)
            product(team, FLOATS, tile, None, None, (tokens, inner, columns))

    with soc.phase("operator"):
        soc.parallel([range(heads)], work)
    return {}


def operator(at: int, tokens: int, seen: int, heads: int = 1, kv_bytes: int = 4) -> RunJob:
    """One of OPERATORS: the phase `operator`."""
    shape = {"operator": at, "tokens": tokens, "seen": seen, "heads": heads, "kv_bytes": kv_bytes}
    return RunJob(one_operator, (1, 1), ROOMY, shape)


def dram_bytes(emulate: Emulate, tokens: int, seen: int, heads: int, kv_bytes: int) -> int:
    """Of all operators."""
    jobs = [operator(at, tokens, seen, heads, kv_bytes) for at in range(len(OPERATORS))]
    return sum(int(number(emulate, job, "dram_bytes.total", "operator")) for job in jobs)
