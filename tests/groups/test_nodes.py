"""GPUs in nodes: collectives against NumPy, bytes of each level by closed forms, times, the fastest way, refusals."""

from typing import Any

import numpy as np
import pytest
from gpu_runs import Alone, new_gpus, run_gpus

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.presets import find_gpu
from meshrt.groups.course import Members, seconds_of
from meshrt.groups.hierarchy import ALGORITHMS, collective, tree
from meshrt.groups.rings import Link
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control

KINDS = ("reduce_sum", "reduce_scatter", "all_gather", "broadcast")
CASES = [(8, 4), (8, 2), (12, 3), (8, 1), (6, 6)]  # GPUs, and those of a node


def in_nodes(count: int, node_size: int, comm: Any = None, payload: bool = True, **more: Any) -> Gpus:
    control = Control(comm or Alone(), Board.alone(), "test")
    return Gpus(count, find_gpu("h100"), control, payload, node_size=node_size, **more)


def arrays(gpus: Gpus, shape: tuple[int, ...]) -> list[np.ndarray]:
    if not gpus.payload:
        return [gpu.shaped(shape) for gpu in gpus.mine]
    return [np.random.default_rng(gpu.index).standard_normal(shape).astype(np.float32) for gpu in gpus.mine]


def call(gpus: Gpus, kind: str, parts: list[np.ndarray], root: int = 1) -> list[np.ndarray]:
    if kind == "all_gather":
        return gpus.all_gather(parts, [parts[0].shape[-1]] * gpus.count)
    return gpus.broadcast(parts, root) if kind == "broadcast" else getattr(gpus, kind)(parts)


def expected(count: int, kind: str, shape: tuple[int, ...], root: int = 1) -> list[np.ndarray]:
    """What NumPy says in float64, GPU by GPU."""
    parts = [np.random.default_rng(at).standard_normal(shape).astype(np.float32).astype(float) for at in range(count)]
    total = np.sum(parts, axis=0)
    if kind == "reduce_scatter":
        return np.array_split(total, count, -1)
    return [{"reduce_sum": total, "all_gather": np.concatenate(parts, -1), "broadcast": parts[root]}[kind]] * count


def outcomes(gpus: Gpus, results: list[np.ndarray]) -> list[Any]:
    """What each GPU has, when, and what it sent, of all ranks."""
    own = [
        (
            gpu.index,
            array.tobytes(),
            gpu.now,
            {kind: (traffic.bytes, traffic.between) for kind, traffic in sent.items()},
        )
        for gpu, array, sent in zip(gpus.mine, results, gpus.traffic, strict=True)
    ]
    shares = gpus.control.bcast(gpus.control.gather(own))
    return [outcome for share in shares for outcome in share]


@pytest.mark.mpi(ranks=[1, 2, 3, 4, 6, 8])
def test_collectives_over_nodes_are_numpys_and_alike_on_any_ranks(comm: Any) -> None:
    for count, node_size in CASES:
        if count < comm.size:
            continue
        for algorithm in ALGORITHMS:
            for kind in KINDS:
                for static in (False, True):
                    gpus, alone = (
                        in_nodes(count, node_size, where, collectives=algorithm, static=static)
                        for where in (comm, None)
                    )
                    results = []
                    for machine in (gpus, alone):
                        if not static:
                            results.append(outcomes(machine, call(machine, kind, arrays(machine, (3, 5)))))
                            continue
                        with machine.recording("plan") as plan:
                            arrays_of_call = call(machine, kind, arrays(machine, (3, 5)))
                        plan.replay()
                        plan.replay()  # it begins anew
                        results.append(outcomes(machine, arrays_of_call))
                        machine.give_up(plan)
                    assert results[0] == results[1]
                    for (index, array, *_), want in zip(results[0], expected(count, kind, (3, 5)), strict=True):
                        assert index < count
                        arrays_of_call = np.frombuffer(array, np.float32).reshape(want.shape)
                        np.testing.assert_allclose(arrays_of_call, want, rtol=1e-5, atol=1e-6)


def closed(kind: str, algorithm: str, n: int, s: int, nbytes: int) -> tuple[int, int]:
    """Bytes inside nodes and between them, of arrays of `nbytes` that n divides; N nodes of s GPUs.

    A ring's n links, N of them between nodes, carry (n-1)/n of the array a phase; to gather, n-1 arrays. Hierarchical,
    n GPUs send (s-1)/s of it inside a node, and (N-1)/N of a share of 1/s between nodes; of a gather first N-1 arrays
    between nodes, then N for each of s-1 others inside. A tree of N sends a share N-1 times up, and N-1 times down. A
    broadcast comes to n-1 others once, to N-1 nodes; its ring from the second GPU of a node on comes back to that node.
    """
    N = n // s
    if kind == "broadcast":
        crossings = N - 1 if algorithm != "ring" or s == 1 or N == 1 else N
        return (n - 1 - crossings) * nbytes, crossings * nbytes
    if kind == "all_gather":
        if algorithm == "ring":
            between = (N if N > 1 else 0) * (n - 1) * nbytes
            return n * (n - 1) * nbytes - between, between
        return n * (s - 1) * N * nbytes, n * (N - 1) * nbytes
    phases = 2 if kind == "reduce_sum" else 1
    if algorithm == "ring":
        between = phases * (N if N > 1 else 0) * (n - 1) * nbytes // n
        return phases * (n - 1) * nbytes - between, between
    return phases * N * (s - 1) * nbytes, phases * (N - 1) * nbytes


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("payload", [True, False])
def test_bytes_of_each_level_are_those_of_closed_forms(payload: bool, comm: Any) -> None:
    for n, s in CASES:
        for algorithm in ALGORITHMS:
            for kind in KINDS:
                gpus = in_nodes(n, s, comm, payload, collectives=algorithm)
                call(gpus, kind, arrays(gpus, (2, n * s)))
                own = [(traffic[kind].bytes - traffic[kind].between, traffic[kind].between) for traffic in gpus.traffic]
                every = [member for share in gpus.control.bcast(gpus.control.gather(own)) for member in share]
                flat = algorithm == "ring" or n == s
                want = closed(kind, "ring" if flat else algorithm, n, s, 4 * 2 * n * s)
                assert tuple(map(sum, zip(*every, strict=True))) == want, (n, s, algorithm, kind)


@pytest.mark.mpi(ranks=[1, 2])
def test_times_are_those_of_both_levels(comm: Any) -> None:
    """All begin at once and chunks are even: 2 (s-1) steps inside a node, 2 (N-1) between, each a latency and a chunk.

    The network's adapters, 4, are shared by the 4 GPUs of a node that send at once; one alone would have them all.
    """
    n, s, numbers = 8, 4, 1 << 22
    gpus = in_nodes(n, s, comm, False, collectives="hierarchical")
    device, nbytes = gpus.device, 4 * numbers
    gpus.reduce_sum(arrays(gpus, (1, numbers)))
    inside, between = (max(protocols, key=lambda protocol: protocol.share) for protocols in (
        device.nvlink_protocols, device.network_protocols
    ))  # fmt: skip
    want = device.launch_seconds + device.kernel_seconds + max(inside.seconds, between.seconds)
    rate = device.network_bytes_per_second * between.share
    want += 2 * (s - 1) * (inside.step_seconds + nbytes / s / (inside.share * device.nvlink_bytes_per_second))
    want += 2 * (n // s - 1) * (between.step_seconds + nbytes / n / rate)
    assert [gpu.now for gpu in gpus.mine] == pytest.approx([want] * len(gpus.mine), rel=1e-12)
    flat = in_nodes(n, s, comm, False, collectives="ring")
    flat.reduce_sum(arrays(flat, (1, numbers)))
    want = device.launch_seconds + device.kernel_seconds + max(inside.seconds, between.seconds)
    slow = between.step_seconds + nbytes / n / (4 * rate)  # the link that all chunks wait for
    quick = inside.step_seconds + nbytes / n / (inside.share * device.nvlink_bytes_per_second)
    last, steps = max(comm.allgather(max(gpu.now for gpu in flat.mine))), 2 * (n - 1)
    assert quick < slow and steps * quick < last - want <= steps * slow * (1 + 1e-12)


def test_a_tree_of_few_numbers_takes_two_latencies_a_level() -> None:
    """Where bytes are nothing: up and down log2 N levels, a ring 2 (N-1) steps."""
    for count, levels in ((2, 1), (3, 1), (4, 2), (7, 2), (8, 3), (64, 6)):
        far = Link(1e30, 1.0)
        members = Members((0,) * count, tuple(range(count)), (far, far))
        up_and_down = tree(range(count), [(0,)])
        assert seconds_of(up_and_down, members, [4]) == pytest.approx(2 * levels)
        ring = collective("reduce_sum", "ring", count, 1)
        assert seconds_of(ring, members, [4] * count) == pytest.approx(2 * (count - 1))


def test_no_part_is_read_and_written_in_one_step() -> None:
    for size, share in [*CASES, (16, 4), (20, 4)]:
        for algorithm in ALGORITHMS:
            for kind in KINDS:
                for step in collective(kind, algorithm, size, share, size - 1):
                    read = {(transfer.source, part) for transfer in step for part in transfer.parts}
                    written = [
                        (transfer.target, part) for transfer in step for part in transfer.parts if not transfer.adds
                    ]
                    added = {(transfer.target, part) for transfer in step for part in transfer.parts if transfer.adds}
                    assert len({*written}) == len(written)
                    assert not read & ({*written} | added) and not {*written} & added


def test_the_fastest_way_is_taken() -> None:
    """By the numbers that are sent: each way alone, and the choice, which is no slower than any. It is not always the
    same one."""
    fastest = set()
    for count, node_size in ((16, 8), (16, 4), (16, 1), (32, 2)):
        for numbers in (1, 1 << 12, 1 << 22):
            for kind in KINDS:
                took = {}
                for way in ("auto", *ALGORITHMS):
                    gpus = in_nodes(count, node_size, payload=False, collectives=way)
                    call(gpus, kind, arrays(gpus, (1, numbers)))
                    took[way] = max(gpu.now for gpu in gpus.mine)
                best = min(took[way] for way in ALGORITHMS)
                assert took["auto"] == best
                fastest.add(next(way for way in ALGORITHMS if took[way] == best))
    assert fastest == {*ALGORITHMS}


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_a_model_over_nodes_has_the_text_of_one_node(comm: Any) -> None:
    arguments: dict[str, Any] = {
        "prompt_ids": "5,9,2,7",
        "max_new_tokens": 3,
        "ignore_eos": True,
        "scheme": "dense",
        "layers": 2,
    }
    on_one_node = run_gpus(new_gpus(8, comm), "llama-tiny", "llama", **arguments)
    for algorithm in ("auto", *ALGORITHMS):
        for static in (False, True):
            gpus = in_nodes(8, 2, comm, collectives=algorithm, static=static)
            report = run_gpus(gpus, "llama-tiny", "llama", **arguments)
            assert report["result"]["token_ids"] == on_one_node["result"]["token_ids"]
            sent, inside, between = (
                report["measured"][name]["total"] for name in ("link_bytes", "intra_node_bytes", "inter_node_bytes")
            )
            assert sent == inside + between == on_one_node["measured"]["link_bytes"]["total"] and inside and between
            assert report["groups"]["node_size"] == 2


@pytest.mark.parametrize("count, more, says", [
    (12, {"node_size": 8}, "12 GPUs do not fill nodes of 8"),
    (16, {"node_size": None}, "NVLink joins 8 GPUs of type h100, not 16: give --link pcie, or --node-size"),
    (16, {"node_size": 16}, "not 16: give a smaller --node-size"),
    (8, {"node_size": None, "collectives": "tree"}, "--collectives tree is for several nodes: give --node-size"),
    (8, {"node_size": 4, "link": "network"}, "give --link nvlink or pcie"),
    (24, {"node_size": 4, "pp": 4}, "--tp 6 and --node-size 4: one of them has to divide the other"),
    (8, {"node_size": 4, "collectives": "star"}, "--collectives is 'star'; there are auto, ring, hierarchical, tree"),
])  # fmt: skip
def test_what_cannot_be_joined_is_refused(count: int, more: dict[str, Any], says: str) -> None:
    link = more.pop("link", None)
    with pytest.raises(UsageError, match=says):
        Gpus(count, find_gpu("h100", link=link), Control(Alone(), Board.alone(), "test"), **more)


def test_what_a_program_asks_of_others_is_refused() -> None:
    gpus = in_nodes(8, 4)
    with pytest.raises(UsageError, match="broadcast from GPU 8: there are GPUs 0 to 7"):
        gpus.broadcast(arrays(gpus, (2,)), 8)


# ---- all-to-all


ROW = 12  # bytes on a link; here a row has three float32 and an int32


def table_of(count: int, seed: int) -> list[list[int]]:
    """Rows from each to each, a third of them none."""
    rng = np.random.default_rng([count, seed])
    return np.where(rng.random((count, count)) < 0.3, 0, rng.integers(1, 6, (count, count))).tolist()


def rows_of(source: int, to: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    first = 1000 * source + 10 * to + np.arange(count)[:, None]
    return (first + np.array([0, 0.25, 0.5])).astype(np.float32), -first.astype(np.int32)


def to_all(gpus: Gpus, table: list[list[int]]) -> list[Any]:
    """What each GPU gets, when, what it sent, and how many parts, of all ranks."""
    kinds = ((3, np.float32), (1, np.int32))

    def arrays(gpu: Any, counts: list[int]) -> list[np.ndarray]:
        shapes = [(sum(counts), columns) for columns, _ in kinds]
        if not gpus.payload:
            return [gpu.shaped(shape) for shape in shapes]
        return [np.full(shape, -9, dtype) for shape, (_, dtype) in zip(shapes, kinds, strict=True)]

    parts = [arrays(gpu, table[gpu.index]) for gpu in gpus.mine]
    if gpus.payload:
        parts = [
            [np.concatenate(each) for each in zip(
                *(rows_of(gpu.index, to, n) for to, n in enumerate(table[gpu.index])), strict=True
            )]
            for gpu in gpus.mine
        ]  # fmt: skip
    outs = [arrays(gpu, [line[gpu.index] for line in table]) for gpu in gpus.mine]
    gpus.all_to_all(parts, outs, table, ROW)
    own = [
        (
            gpu.index, [array.tobytes() for array in out] if gpus.payload else [], gpu.now, sent["all_to_all"].bytes,
            sent["all_to_all"].between, gpu.counters.tally["all_to_all_parts"], gpu.counters.collective_seconds,
        )
        for gpu, out, sent in zip(gpus.mine, outs, gpus.traffic, strict=True)
    ]  # fmt: skip
    shares = gpus.control.bcast(gpus.control.gather(own))
    return [outcome for share in shares for outcome in share]


def to_all_bytes(n: int, s: int, way: str, link: str, table: list[list[int]]) -> tuple[list[int], list[int], int]:
    """Bytes that each GPU sends inside its node and between nodes, and parts of all, in closed form.

    Flat: each part once, on the level that it crosses. Hierarchical: inside the source's node to the place that the
    target has in its own, unless it is there, over as many links as it is places farther where links join neighbours
    only; then from there to the target, unless that is in the same node.
    """
    inside, between, parts = [0] * n, [0] * n, 0
    for source in range(n):
        for to in range(n):
            nbytes = ROW * table[source][to]
            if not nbytes or source == to:
                continue
            same = source // s == to // s
            if way == "ring" and link == "nvlink":
                (inside if same else between)[source] += nbytes
                parts += 1
                continue
            node, far = source // s * s, (to - source) % s
            for hop in range(far) if link == "pcie" else [0] * bool(far):
                inside[node + (source + hop) % s] += nbytes
                parts += 1
            if not same:
                between[node + to % s] += nbytes
                parts += 1
    return inside, between, parts


@pytest.mark.mpi(ranks=[1, 2, 3, 4, 8])
def test_all_to_all_over_nodes_is_numpys_and_counted_where_it_goes(comm: Any) -> None:
    for n, s in CASES:
        if n < comm.size or n == s:
            continue
        table = table_of(n, s)
        for way in ("auto", "ring", "hierarchical", "tree"):
            for link in ("nvlink", "pcie"):

                def gpus(
                    where: Any, payload: bool = True, n: int = n, s: int = s, way: str = way, link: str = link
                ) -> Gpus:
                    control = Control(where or Alone(), Board.alone(), "test")
                    return Gpus(n, find_gpu("a800", link=link), control, payload, node_size=s, collectives=way)

                outcomes = to_all(gpus(comm), table)
                assert outcomes == to_all(gpus(None), table)
                assert [outcome[2:] for outcome in outcomes] == [
                    outcome[2:] for outcome in to_all(gpus(comm, payload=False), table)
                ]
                for at, arrays_, *_ in outcomes:
                    want = zip(*(rows_of(source, at, line[at]) for source, line in enumerate(table)), strict=True)
                    assert arrays_ == [np.concatenate(each).tobytes() for each in want]
                closed_forms = [to_all_bytes(n, s, algorithm, link, table) for algorithm in ("ring", "hierarchical")]
                sent_ = (
                    [outcome[3] - outcome[4] for outcome in outcomes],
                    [outcome[4] for outcome in outcomes],
                    sum(outcome[5] for outcome in outcomes),
                )
                if way == "auto":
                    assert sent_ in closed_forms
                else:
                    assert sent_ == closed_forms[way != "ring"]


def test_an_all_to_all_takes_what_both_levels_take() -> None:
    """Even parts of r rows: s - 1 steps inside, N - 1 between, of n/s and of s parts; flat n - 1 steps, of which those
    to another node wait for the network. Parts of few bytes go hierarchically, which has fewer latencies there."""
    n, s, took = 16, 4, {}
    for rows in (1, 40_000):
        for way in ("ring", "hierarchical", "auto"):
            gpus = in_nodes(n, s, payload=False, collectives=way)
            outcomes = to_all(gpus, [[rows] * n for _ in range(n)])
            took[rows, way] = max(outcome[6] for outcome in outcomes)
            device = gpus.device
        nbytes, adapters = ROW * rows, min(s, device.node_adapters) * device.network_bytes_per_second / s
        near, far = (
            min(
                protocols,
                key=lambda protocol: (
                    protocol.seconds + steps * (protocol.step_seconds + most / (protocol.share * rate))
                ),
            )
            for protocols, rate, steps, most in (
                (device.nvlink_protocols, device.nvlink_bytes_per_second, s - 1, n // s * nbytes),
                (device.network_protocols, adapters, n // s - 1, s * nbytes),
            )
        )
        want = max(near.seconds, far.seconds)
        want += (s - 1) * (near.step_seconds + n // s * nbytes / (near.share * device.nvlink_bytes_per_second))
        want += (n // s - 1) * (far.step_seconds + s * nbytes / (far.share * adapters))
        assert took[rows, "hierarchical"] == pytest.approx(want, rel=1e-12)
        assert took[rows, "auto"] == min(took[rows, "ring"], took[rows, "hierarchical"])
    assert took[1, "hierarchical"] < took[1, "ring"]


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_experts_over_nodes_say_what_they_say_in_one(comm: Any) -> None:
    """Tokens are sent to experts in other nodes, and back."""
    arguments: dict[str, Any] = {
        "prompt_ids": "5,9,2,7,11",
        "max_new_tokens": 4,
        "ignore_eos": True,
        "experts": "alltoall",
    }
    on_one_node = run_gpus(new_gpus(8, comm), "mixtral-tiny", "llama", **arguments)
    for way in ("ring", "hierarchical"):
        report = run_gpus(in_nodes(8, 2, comm, collectives=way), "mixtral-tiny", "llama", **arguments)
        assert report["result"]["token_ids"] == on_one_node["result"]["token_ids"]
        calls, before = (each["measured"]["collectives"]["all_to_all"] for each in (report, on_one_node))
        assert calls["calls"] == before["calls"] and calls["bytes"]["total"] >= before["bytes"]["total"] > 0
        assert report["measured"]["inter_node_bytes"]["total"] > 0
