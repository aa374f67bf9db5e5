"""The GPU runtime: two clocks, memory by name, collectives eager and recorded, the report."""

import re
from contextlib import suppress
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from gpu_runs import new_gpus
from hypothesis import given
from hypothesis import strategies as st

from meshrt.errors import LimitError, UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.operations import add, matmul, matmuls, take
from meshrt.gpu.presets import GPU_PRESETS, find_gpu
from meshrt.gpu.timing import plain_seconds, products_seconds
from meshrt.reports.report import gather_report


def arrays(gpus: Gpus, *shape: int) -> list[np.ndarray]:
    """Different numbers on each GPU."""
    return [
        np.random.default_rng(gpu.index).standard_normal(shape).astype(np.float32)
        if gpus.payload
        else gpu.shaped(shape)
        for gpu in gpus.mine
    ]


# ---- one GPU


def test_kernels_wait_for_their_launch_and_for_one_another() -> None:
    """Launched one by one, short kernels take as long as their launches; long ones follow one another."""
    gpu = new_gpus(1, payload=False).mine[0]
    device = gpu.device
    few, many = gpu.shaped((4, 512)), gpu.shaped((1 << 16, 4096))
    w = gpu.shaped((4096, 4096))
    for _ in range(3):
        add(gpu, few, few)
    assert gpu.host_clock == pytest.approx(3 * device.launch_seconds)
    small = plain_seconds(device, few.size, 3 * few.nbytes)
    assert gpu.now == pytest.approx(gpu.host_clock + device.kernel_seconds + small)
    for _ in range(2):
        matmul(gpu, many, w)
    flops = 2 * (1 << 16) * 4096 * 4096
    product = products_seconds(device, ((1 << 16, 4096, 4096),), 4)
    assert product > flops / device.flops
    long = product + device.kernel_seconds  # begins with the fourth launch
    assert gpu.now == pytest.approx(4 * device.launch_seconds + 2 * long, rel=1e-9)
    assert gpu.counters.flops == 2 * flops + 3 * few.size
    assert gpu.counters.memory_traffic == 3 * 3 * few.nbytes + 2 * (2 * many.nbytes + w.nbytes)
    assert gpu.counters.compute_seconds == pytest.approx(2 * product + 3 * small)


def test_a_graph_is_launched_once() -> None:
    """Of n short kernels the host launches n; in a graph it launches one, and the device does the rest."""
    n, seconds = 50, []
    for static in (False, True):
        gpus = new_gpus(1, payload=False)
        gpu = gpus.mine[0]
        few = gpu.shaped((4, 512))
        if static:
            with gpus.recording("plan") as plan:
                for _ in range(n):
                    add(gpu, few, few)
            assert gpu.now == gpu.host_clock == gpu.counters.launches == 0
            plan.replay()
            assert gpu.host_clock == gpu.device.graph_launch_seconds
        else:
            for _ in range(n):
                add(gpu, few, few)
        assert gpu.counters.launches == n
        seconds.append(gpu.now)
    device = gpu.device
    kernel = device.kernel_seconds + plain_seconds(device, few.size, 3 * few.nbytes)
    assert seconds[0] == pytest.approx(n * device.launch_seconds + kernel)
    assert seconds[1] == pytest.approx(device.graph_launch_seconds + n * kernel)


def test_operations_are_numpys() -> None:
    gpu = new_gpus(1).mine[0]
    rng = np.random.default_rng(0)
    x, w, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (4, 5), (4, 2)))
    bias = rng.standard_normal(5).astype(np.float32)
    np.testing.assert_allclose(matmul(gpu, x, w, bias), x @ w + bias, rtol=1e-5)
    first, second = matmuls(gpu, [x, x[:, :]], [w, v], [bias, None])
    np.testing.assert_allclose(first, x @ w + bias, rtol=1e-5)
    np.testing.assert_allclose(second, x @ v, rtol=1e-5)
    np.testing.assert_array_equal(take(gpu, w, np.array([2, 0, 2])), w[[2, 0, 2]])
    assert gpu.counters.launches == 3


# ---- memory


def test_memory_has_names_a_peak_and_a_limit() -> None:
    gpu = new_gpus(1, payload=False, memory_bytes=1000).mine[0]
    gpu.keep("weights", gpu.shaped((100,)))
    gpu.open_scope()
    gpu.new(50)
    gpu.open_scope()
    gpu.new(75)
    gpu.close_scope()
    assert gpu.memory.names == {"weights": 400, "workspace": 200} and gpu.memory.peak == 900
    gpu.new(20)
    with pytest.raises(LimitError, match="GPU 0: 'workspace' asks for 404 bytes, 680 are in use, the limit is 1000"):
        gpu.new(101)
    gpu.close_scope()
    assert gpu.memory.used == 400 and gpu.memory.peak == 900
    gpu.new(150)  # to the last byte


def test_a_plan_uses_its_buffers_again_and_gives_them_back() -> None:
    gpus = new_gpus(1)
    gpu = gpus.mine[0]
    with gpus.recording("plan") as plan:
        for _ in range(5):
            with gpus.scope():
                gpu.new(10, 3)
                gpu.new(10, 3)
    assert gpu.memory.names == {"plan": 2 * 120}
    gpus.give_up(plan)
    assert gpu.memory.used == 0


# ---- together


@pytest.mark.mpi(ranks=[1, 2, 3])
@pytest.mark.parametrize("count", [3, 4])
def test_recorded_collectives_are_the_eager_ones(comm: Any, count: int) -> None:
    """The same bits, counts and times, for any sizes, again and again, on any number of ranks."""
    sizes = [2, 0, 5, 1][:count]
    eager, static = (new_gpus(count, comm) for _ in range(2))
    summed, gathered = arrays(static, 3, 7), [part[:, : sizes[gpu.index]] for gpu, part in zip(
        static.mine, arrays(static, 2, 5), strict=True
    )]  # fmt: skip
    with static.recording("plan") as plan:
        sums, wide = static.reduce_sum(summed), static.all_gather(gathered, sizes)
    for turn in range(3):
        for part in summed:
            part += turn
        plan.replay()
        for gpu in eager.mine:  # a recorded collective is launched with its graph
            gpu.launch_graph()
            gpu.host_clock -= 2 * gpu.device.launch_seconds
        want, wide_want = eager.reduce_sum(summed), eager.all_gather(gathered, sizes)
        for replayed, expected in zip([*sums, *wide], [*want, *wide_want], strict=True):
            assert replayed.tobytes() == expected.tobytes()
        assert static.group.traffic == eager.group.traffic
        assert [gpu.now for gpu in static.mine] == pytest.approx([gpu.now for gpu in eager.mine], rel=1e-12)
        assert static.group.messages == eager.group.messages
        assert static.group.message_bytes == eager.group.message_bytes
    static.give_up(plan)


def test_one_gpu_sends_nothing() -> None:
    gpus = new_gpus(1)
    parts = arrays(gpus, 2, 3)
    assert gpus.reduce_sum(parts) is parts and gpus.all_gather(parts, [3]) is parts
    assert gpus.mine[0].now == 0 and gpus.group.traffic == [{}]


@pytest.mark.mpi(ranks=[1, 2])
def test_all_meet_at_the_last_ones_time(comm: Any) -> None:
    gpus = new_gpus(4, comm, payload=False)
    for gpu in gpus.mine:
        gpu.now = float(gpu.index)
    assert gpus.meet() == 3.0
    assert all(gpu.now == gpu.host_clock == 3.0 for gpu in gpus.mine)


@pytest.mark.mpi(ranks=[1, 3])
def test_phases_add_up_to_the_whole(comm: Any) -> None:
    gpus = new_gpus(3, comm)
    for _ in range(2):
        for name, size in (("large", 64), ("small", 8)):
            with gpus.phase(name, size):
                gpus.reduce_sum(arrays(gpus, size, size))
                for gpu in gpus.mine:
                    matmul(gpu, np.ones((size, size), np.float32), np.ones((size, size), np.float32))
    report = gpus.control.bcast(gather_report("gpu", gpus, "test", {}, {}, {}))
    whole, phases = report["measured"], report["phases"]
    assert [phase["name"] for phase in phases] == ["large", "small"]
    assert [phase["tokens"] for phase in phases] == [128, 16]
    for key in ("flops", "launches"):
        assert whole[key] == sum(phase[key] for phase in phases) > 0
    for total in (lambda part: part["link_bytes"]["total"], lambda part: part["memory_traffic"]["total"]):
        assert total(whole) == sum(map(total, phases)) > 0
    seconds = [phase["critical_path"]["seconds"] for phase in phases]
    assert whole["critical_path"]["seconds"] == pytest.approx(sum(seconds))
    assert whole["collectives"]["reduce_sum"]["calls"] == 4
    assert report["mesh"] == [3, 1]


# ---- devices


def test_what_cannot_be_joined_is_refused() -> None:
    with pytest.raises(UsageError, match="NVLink joins 2 GPUs of type a6000, not 4"):
        new_gpus(4, device="a6000", link="nvlink")
    with pytest.raises(UsageError, match="--tp is 0"):
        new_gpus(0)
    with pytest.raises(UsageError, match="no GPU 'h900'"):
        find_gpu("h900")
    with pytest.raises(UsageError, match="memory_bytes is 0"):
        find_gpu("a800", memory_bytes=0)


@pytest.mark.mpi(ranks=[2])
def test_more_ranks_than_gpus_are_refused(comm: Any) -> None:
    with pytest.raises(UsageError, match="2 ranks for 1 GPU: start 1 rank at most"):
        new_gpus(1, comm)


@pytest.mark.parametrize(
    ("link", "name"),
    [("nvlink", "a800"), ("pcie", "a6000"), ("network", "h100")],
)
def test_a_collective_takes_the_fastest_protocol(link: str, name: str) -> None:
    """8 GPUs, an all-reduce of ever more bytes: a collective's seconds, then 14 steps with an eighth of them each; the
    protocols take turns as messages grow, and none is beaten by another."""
    used = []
    for eighth in (int(2 ** (step / 4)) for step in range(20, 92)):
        gpus = new_gpus(8, payload=False, link=link, device=name)
        device = gpus.device
        gpus.reduce_sum(arrays(gpus, 8 * eighth))
        chunk, rate = 4 * eighth, device.link_bytes_per_second
        times = {
            protocol.name: protocol.seconds + 14 * (protocol.step_seconds + chunk / (protocol.share * rate))
            for protocol in device.protocols
        }  # fmt: skip
        begin = device.launch_seconds + device.kernel_seconds
        assert gpus.meet() == pytest.approx(begin + min(times.values()), rel=1e-9)
        assert gpus.mine[0].counters.collective_seconds == pytest.approx(min(times.values()), rel=1e-9)
        used.append(min(times, key=lambda name: times[name]))
    assert list(dict.fromkeys(used)) == [protocol.name for protocol in device.protocols] == ["LL", "Simple"]


@pytest.mark.parametrize("link", ["nvlink", "pcie"])
def test_a_link_of_another_rate(link: str) -> None:
    """The same bytes over half the rate take twice the time, beside what a collective and its steps take."""
    seconds, device = [], find_gpu("a800", link=link)
    rate, share = device.link_bytes_per_second, device.protocols[-1].share
    for times in (1.0, 0.5):
        gpus = new_gpus(4, payload=False, link=link, link_rate=times * rate)
        gpus.reduce_sum(arrays(gpus, 1 << 26))
        seconds.append(gpus.meet())
    assert seconds[1] - seconds[0] == pytest.approx(
        6 * (1 << 26) / (share * rate)
    )  # 6 steps of a quarter of 4 bytes each
    other = find_gpu("a800", rate / 2, link=link)
    assert [other.nvlink_bytes_per_second, other.pcie_bytes_per_second].count(rate / 2) == 1


@pytest.mark.parametrize(("in_node", "adapters"), [(1, 1), (3, 3), (8, 4)])
def test_nodes_have_so_many_adapters(in_node: int, adapters: int) -> None:
    device = find_gpu("a100", link="network", node_gpus=in_node)
    assert device.link_bytes_per_second == adapters * device.network_bytes_per_second


@given(st.sampled_from([*GPU_PRESETS]), st.sampled_from(["nvlink", "pcie"]))
def test_every_preset_says_where_its_numbers_are_from(name: str, link: str) -> None:
    device = find_gpu(name, link=link)
    text = " ".join(device.sources)
    named = set(re.findall(r"\w+", text))  # whole words: flops_share is no source of flops
    assert {field.name for field in fields(device)} - named <= {"name", "link", "sources"}
    assert device.link_bytes_per_second == getattr(device, f"{link}_bytes_per_second")


def test_where_each_pair_has_a_link_a_ring_gets_those_to_all_others() -> None:
    """An MI300X in groups of 2, 4 and 8, also of a node, with 64 GB/s to each other one; another rate is the ring's."""
    for tp, groups, rate in (
        (2, {}, 64e9), (4, {}, 192e9), (8, {}, 448e9), (8, {"node_size": 4}, 192e9), (2, {"pp": 4}, 64e9),
        (8, {"link_rate": 100e9}, 100e9),
    ):  # fmt: skip
        assert new_gpus(tp, payload=False, device="mi300x", **groups).device.link_bytes_per_second == rate
    assert (
        new_gpus(2, payload=False, device="h200").device.link_bytes_per_second == find_gpu("h100").link_bytes_per_second
    )


def test_what_an_exception_ends_is_counted_and_given_back() -> None:
    """A program catches it and goes on: the phase has what was done in it, buffers of the scope are free again."""
    gpus = new_gpus(2, payload=False)
    with suppress(ValueError), gpus.phase("ended"), gpus.scope():
        matmul(gpus.mine[0], gpus.mine[0].shaped((3, 5)), gpus.mine[0].shaped((5, 2)))
        raise ValueError
    with suppress(ValueError), gpus.recording("plan"):
        raise ValueError
    with suppress(ValueError), gpus.mine[0].fused(gpus.mine[0].cost(1, 1)):
        raise ValueError
    with gpus.phase("next"), gpus.scope():
        add(gpus.mine[0], gpus.mine[0].new(4), gpus.mine[0].new(4))
    assert gpus.mine[0].memory.used == 0
    report = gather_report("gpu", gpus, "none", {}, {}, {"wall_seconds": 0.0})
    assert report is not None
    assert [(phase["name"], phase["flops"]) for phase in report["phases"]] == [("ended", 2 * 3 * 5 * 2), ("next", 4)]
    assert report["measured"]["flops"] == 60 + 4
    times = [phase["critical_path"]["seconds"] for phase in report["phases"]]
    assert all(times) and sum(times) == pytest.approx(report["measured"]["critical_path"]["seconds"])


def test_a_phase_begins_when_the_last_gpu_is_there() -> None:
    """So what was done before it, on whichever GPU, is no part of its time."""
    seconds = []
    for busy in (0, 1):
        gpus = new_gpus(2, payload=False)
        wide, few = gpus.mine[0].shaped((512, 512)), gpus.mine[0].shaped((4, 4))
        matmul(gpus.mine[busy], wide, wide)
        with gpus.phase("next"):
            matmul(gpus.mine[0], few, few)
        seconds.append(gpus.phases["next"].seconds)
    device = gpus.device
    least = device.launch_seconds + device.kernel_seconds + products_seconds(device, ((4, 4, 4),), 4)
    assert seconds == pytest.approx([least, least])


@pytest.mark.parametrize("payload", [True, False])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda gpus, a: gpus.reduce_sum([a, a[:, :2]]), r"of \[2, 2\] on GPU 1, where GPU 0 has \[2, 3\]"),
        (lambda gpus, a: gpus.reduce_scatter([a]), "of 1 array: give a list of one array for each of 2 GPUs"),
        (lambda gpus, a: gpus.reduce_sum(np.stack([a, a])), r"of one \[2, 2, 3\]: give a list"),
        (lambda gpus, a: gpus.reduce_sum([np.float32(1), a]), "of a float32 on GPU 0: give arrays with an axis"),
        (lambda gpus, a: gpus.all_gather([a, a], [3, 2]), r"of \[2, 3\] on GPU 1, where its sizes say \[2, 2\]"),
        (lambda gpus, a: gpus.all_gather([a, a], [3]), "has 1 size: give one for each of 2 GPUs"),
        (lambda gpus, a: gpus.broadcast([a, a], 1.0), r"from GPU 1\.0: there are GPUs 0 to 1"),
        (lambda gpus, a: matmul(gpus.mine[0], a, a), r"a product of \[2, 3\] and \[2, 3\]: give \[m, k\] and \[k, n\]"),
        (lambda gpus, a: matmul(gpus.mine[0], a[0], a.T), r"a product of \[3\] and \[3, 2\]"),
        (lambda gpus, a: matmuls(gpus.mine[0], [a], [a], [None]), r"a product of \[2, 3\] and \[2, 3\]"),
        (lambda gpus, a: add(gpus.mine[0], a, a[:, :2]), r"\[2, 2\] added to \[2, 3\]: give an array of that shape"),
        (lambda gpus, a: add(gpus.mine[0], a[:1], a), r"\[2, 3\] added to \[1, 3\]"),
        (lambda gpus, a: gpus.mine[0].new(2, -1), r"a buffer \[2, -1\] on GPU 0: give sides of 0 and more"),
    ],
)
def test_shapes_that_do_not_go_together_are_refused(payload: bool, wrong: Any, message: str) -> None:
    """By shape alone nothing else would say so: the run would count a product, or a sum, that cannot be."""
    gpus = new_gpus(2, payload=payload)
    with pytest.raises(UsageError, match=message):
        wrong(gpus, gpus.mine[0].shaped((2, 3)))


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_that_a_table_has_not_is_refused(row: int) -> None:
    """NumPy, as it is asked, would give the first or the last."""
    gpu = new_gpus(1).mine[0]
    with pytest.raises(UsageError, match=rf"row {row} of a table \[4, 2\]: give rows from 0 to 3"):
        take(gpu, np.ones((4, 2), np.float32), np.array([0, row]))


def test_a_gpus_limit_comes_before_the_hosts() -> None:
    with pytest.raises(LimitError, match="asks for 4000000000000 bytes"):
        new_gpus(1).mine[0].new(10**6, 10**6)
