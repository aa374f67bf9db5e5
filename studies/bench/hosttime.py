"""Where the host's time goes: a run under Python's profiler, its functions sorted into what they are for.

A function of this package counts for its own kind of work; NumPy's and Python's count for those that call them. The
profiler's own cost is in the shares: many short calls look somewhat dearer than they are.
"""

from collections.abc import Callable, Mapping
from cProfile import Profile
from typing import Any

import numpy as np

from meshrt.studies.grid import Cell, Grid, put

KINDS = ("products", "tiles", "headers", "MPI", "planning", "placing", "other")
MEANINGS = {
    "products": "the cores' matrix products",
    "tiles": "copying tiles to where they are delivered, and into and out of messages",
    "headers": "headers, clocks and counters of packets",
    "MPI": "sending to other ranks and waiting for them",
    "planning": "route tables, scouts, schedules, what the compiled core goes by",
    "placing": "making the matrices, cutting and gathering them, the check against NumPy",
    "other": "the program itself, memory's count, imports, start, report",
}

# Files of which all is planning.
WIRES = (
    "compiling", "inplace", "lane", "masks", "routers", "routes", "rows", "schedule", "scouts", "steps", "strides",
    "stripsums", "sumtables", "tables", "tally",
)  # fmt: skip
PLANNING = (
    *(f"mesh/wires/{name}.py" for name in WIRES),
    *(f"mesh/collectives/{name}.py" for name in ("grouping", "treeplan")),
    *(f"mesh/exchange/{name}.py" for name in ("itinerary", "legs", "rounds")),
)
# (file or folder in meshrt, functions or None for all) -> kind; the first that fits.
RULES: tuple[tuple[str, frozenset[str] | None, str], ...] = (
    ("mesh/computing.py", frozenset({"matmul"}), "products"),
    ("mesh/products.py", None, "products"),
    *((file, None, "planning") for file in PLANNING),
    ("mesh/wires/planning.py", frozenset({"spend"}), "headers"),
    ("mesh/wires/planning.py", None, "planning"),
    ("mesh/wires/fabric.py", frozenset({"prepare"}), "planning"),
    ("mesh/wires/lines.py", frozenset({"pieces", "as_index", "as_slice"}), "planning"),
    ("mesh/wires/glide.py", frozenset({"glide_of"}), "planning"),
    ("mesh/wires/together.py", frozenset({"_group"}), "planning"),
    ("mesh/wires/sends.py", frozenset({"rows_of", "_rows"}), "planning"),
    ("mesh/collectives/trees.py", frozenset({"installed_tree", "_planned"}), "planning"),
    ("mesh/exchange/strips.py", frozenset({"parts"}), "planning"),
    ("mesh/wires/fabric.py", frozenset({"send"}), "tiles"),
    ("mesh/wires/delivery.py", None, "tiles"),
    ("mesh/wires/replay.py", frozenset({"_load"}), "tiles"),
    ("mesh/collectives/rings.py", None, "tiles"),
    ("mesh/collectives/shifts.py", None, "tiles"),
    ("programs/mesh/meshgemm.py", None, "tiles"),
    ("mesh/wires/requests.py", None, "MPI"),
    ("ranks/host.py", frozenset({"wait"}), "MPI"),
    ("ranks/control.py", None, "MPI"),
    ("ranks/bells.py", None, "MPI"),
    ("ranks/board.py", frozenset({"waiting", "moving"}), "MPI"),
    ("mesh/clock.py", None, "headers"),
    ("mesh/wires/", None, "headers"),
    ("mesh/collectives/", None, "headers"),
    ("mesh/exchange/", None, "headers"),
    ("mesh/tiles.py", None, "placing"),
    ("programs/gemm.py", None, "placing"),
)

DEPTH = 30  # calls between a function of others and the one of ours that it works for, at most
ProfiledFunction = tuple[str, int, str]  # file, line, name, as the profiler has them


def profiled(work: Callable[[], object]) -> tuple[Any, dict[str, float]]:
    """(exit code of `work`, seconds by kind) on this rank. What `work` raises, but for SystemExit, goes on."""
    profile = Profile()
    code: Any = 0
    try:
        profile.runcall(work)
    except SystemExit as end:
        code = end.code
    profile.create_stats()
    return code, by_kind(profile.stats)


def by_kind(stats: Mapping[ProfiledFunction, Any]) -> dict[str, float]:
    """Seconds by kind of a profile: {function: (calls, calls, own seconds, seconds, {caller: the same four})}."""
    owners = _owners(stats)
    seconds = np.zeros(len(KINDS))
    for function, (_, _, own_seconds, _, callers) in stats.items():
        if kind(function) is not None or not callers:
            seconds += own_seconds * owners[function]
        else:
            for caller, part in callers.items():
                seconds += part[2] * owners[caller]
    return dict(zip(KINDS, seconds.tolist(), strict=True))


def kind(function: ProfiledFunction) -> str | None:
    """What a function of this package, or of mpi4py, is for; None for what others made."""
    file, _, name = function
    if "mpi4py" in file or "mpi4py" in name:
        return "MPI"
    _, inside, path = file.replace("\\", "/").rpartition("/meshrt/")
    if not inside:
        return None
    if name == "<module>":  # an import, whatever the file is for
        return "other"
    places = path, f"{path.rpartition('/')[0]}/"
    return next((kind for place, names, kind in RULES if place in places and (names is None or name in names)), "other")


def _owners(stats: Mapping[ProfiledFunction, Any]) -> dict[ProfiledFunction, np.ndarray]:
    """The kinds that each function works for, shares that add up to 1: its own, or those of its callers.

    Functions of others call each other, in circles too: the shares are handed down from caller to called until all
    have them.
    """
    unit = dict(zip(KINDS, np.eye(len(KINDS)), strict=True))
    shares, open_ones = {}, []
    for function, (*_, callers) in stats.items():
        function_kind = kind(function) or (None if callers else "other")
        shares[function] = np.zeros(len(KINDS)) if function_kind is None else unit[function_kind]
        if function_kind is None:
            weights = np.array([part[3] for part in callers.values()]) + 1e-9  # a call too short to be timed counts
            open_ones.append((function, list(callers), weights / weights.sum()))
    for _ in range(DEPTH):
        for function, callers, weights in open_ones:
            shares[function] = weights @ np.array([shares.get(caller, unit["other"]) for caller in callers])
    for function, *_ in open_ones:
        total = shares[function].sum()
        shares[function] = shares[function] / total if total else unit["other"]
    return shares


def print_shares(seconds: Mapping[str, float], form: str = "table") -> None:
    """Seconds and shares, one kind a line."""
    total = sum(seconds.values()) or 1.0
    rows = [
        (
            name,
            Cell(spent := seconds[name], f"{spent:.2f} s"),
            Cell(spent / total, f"{spent / total:.1%}"),
            MEANINGS[name],
        )
        for name in KINDS
    ]
    put([Grid(("kind", "seconds", "share", "what"), rows)], form)
