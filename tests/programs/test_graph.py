"""Graphs of operators: on the mesh and on Arm cores, of any shape, against onnx's own reference; the same on ranks."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_runs import Alone
from measure import on_one_rank, run_report
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnx_graphs import FLOAT, Builder, attention_block, functions, mlp, save
from runs import run_on_arm

from meshrt.arm.device import find_arm_device
from meshrt.arm.soc import Soc
from meshrt.errors import LimitError, UsageError
from meshrt.models.errors import ModelError
from meshrt.models.graph import Graph, Input, Node, read_graph, run_graph
from meshrt.programs.arm.graph import run_operators
from meshrt.programs.feeding import told
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control

GRAPHS: dict[str, Any] = {"mlp": mlp, "attention": attention_block, "functions": functions}
IDS = np.array([[3, 0, 16, 7, 7, 2]])


def feeds(name: str) -> dict[str, Any]:
    if name == "attention":
        return {"ids": IDS}
    x = np.random.default_rng(5).standard_normal((3, 13)).astype(np.float32)
    return {"x": x} | ({"ids": np.array([-3, 5, 0, -1, 2**40])} if name == "functions" else {})


def folder(model: Any, path: Path) -> Path:
    """The graph as `meshrt import` writes it."""
    from meshrt.models.onnx.model import read_onnx, write_graph  # late: it takes a second, of all that collect

    if not (path / "graph").is_dir():
        write_graph(str(path / "graph"), read_onnx(save(model, path / "m.onnx")))
    return path / "graph"


def options(name: str, path: Path) -> dict[str, Any]:
    np.savez(path / "in.npz", **feeds(name))
    sizes = {"sizes": "batch=3"} if name == "mlp" else {}
    return {
        "model": str(folder(GRAPHS[name](), path)),
        "inputs": str(path / "in.npz"),
        "outputs": str(path / "out.npz"),
    } | sizes


def check(name: str, path: Path) -> None:
    want = ReferenceEvaluator(GRAPHS[name]()).run(None, feeds(name))
    with np.load(path / "out.npz") as written:
        for output, expected in zip(("y", "z"), want, strict=False):
            np.testing.assert_allclose(written[output], expected, atol=2e-6)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("mesh", [(1, 1), (4, 4), (3, 2), (2, 5), (13, 12)])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_mesh_computes_what_onnx_says(name: str, mesh: tuple[int, int], comm: Any, tmp_path: Path) -> None:
    report = run_report(comm, "graph", mesh, **options(name, tmp_path))
    check(name, tmp_path)
    assert report["result"]["max_rel_error"] < 1e-6


@pytest.mark.parametrize("m, k, n, cores", [(1, 64, 96, 1), (1, 64, 96, 8), (4, 100, 300, 3), (8, 17, 9, 2)])
def test_a_cold_product_reads_all_of_both_operands_from_dram(m: int, k: int, n: int, cores: int) -> None:
    """Once, though cores' strips of a matrix meet within a piece of 8 KiB; what comes out is in the SLC."""
    node, takes = Node("MatMul", "product", ("x", "w"), "y", {}), (Input("x", "float32", (m, k)),)
    soc = Soc(find_arm_device("n2x8"), cores, Control(Alone(), Board.alone(), "test"))
    x, w = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    run_operators(soc, Graph(takes, ("y",), (node,), {"w": w}), {"x": x})
    assert soc.system["dram_read"] == x.nbytes + w.nbytes and soc.system["dram_written"] == 0
    written = sum(core.counts["slc_bytes"] for core in soc.mine) - sum(core.counts["l2_bytes"] for core in soc.mine)
    assert written == 4 * m * n


@pytest.mark.parametrize("shape, nbytes", [((100,), 8 * 400), ((1, 1), 8 * 4), ((16, 1), 16 * 4), ((16, 100), 6400)])
def test_what_is_repeated_for_all_rows_is_read_by_every_core(shape: tuple[int, ...], nbytes: int) -> None:
    """Each of eight cores adds two rows of 100: of a bias it needs all, of a column two numbers."""
    inputs = Input("x", "float32", (16, 100)), Input("b", "float32", shape)
    soc = Soc(find_arm_device("n2x8"), 8, Control(Alone(), Board.alone(), "test"), payload=False)
    feeds = {each.name: np.zeros(each.shape, np.float32) for each in inputs}
    run_operators(soc, Graph(inputs, ("y",), (Node("Add", "sum", ("x", "b"), "y", {}),), {}), feeds)
    assert sum(core.counts["l2_bytes"] for core in soc.mine) == 16 * 400 + nbytes
    assert soc.system["dram_read"] == 16 * 400 + 4 * np.zeros(shape).size


@pytest.mark.mpi(ranks=[2, 4, 6])
@pytest.mark.parametrize("name", GRAPHS)
def test_any_number_of_ranks_gives_the_same_bits(name: str, comm: Any, tmp_path_factory: Any) -> None:
    path = comm.bcast(tmp_path_factory.mktemp("graph") if comm.rank == 0 else None)
    arguments = comm.bcast(options(name, path) if comm.rank == 0 else None)

    def run(ranks: Any) -> Any:
        report = run_report(ranks, "graph", (6, 5), **arguments)
        written = ranks.bcast({**np.load(path / "out.npz")} if ranks.rank == 0 else None)
        return {key: value for key, value in report.items() if key != "host"}, {
            name: array.tobytes() for name, array in written.items()
        }

    assert run(comm) == on_one_rank(comm, run)


@pytest.mark.mpi(ranks=[1, 2, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_arm_cores_compute_what_onnx_says(name: str, comm: Any, tmp_path_factory: Any) -> None:
    path = comm.bcast(tmp_path_factory.mktemp("graph") if comm.rank == 0 else None)
    arguments = comm.bcast(options(name, path) if comm.rank == 0 else None)
    report = run_on_arm(comm, "graph", 5, **arguments)
    if comm.rank == 0:
        check(name, path)
        on_ranks = {key: value for key, value in report.items() if key != "host"}
    shapes = run_on_arm(comm, "graph", 5, payload=False, **arguments | {"outputs": None})
    on_one = on_one_rank(comm, lambda ranks: run_on_arm(ranks, "graph", 5, **arguments))
    if comm.rank == 0:
        assert on_ranks == {key: value for key, value in on_one.items() if key != "host"}
        assert shapes["measured"] == report["measured"]


# ------------------------------------------------------------------------------------------------------- what it costs


def product(inputs: int, outputs: int) -> Any:
    b = Builder()
    b("MatMul", "x", np.ones((inputs, outputs), np.float32), name="y")
    return b.model({"x": (FLOAT, [3, inputs])}, {"y": (FLOAT, [3, outputs])})


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_products_alternate_the_axes(count: int, comm: Any, tmp_path: Path) -> None:
    """Each is one allreduce: stages of one line's tree times the lines, along y, x, y. Nothing else is sent."""
    b, x = Builder(), "x"
    for at in range(count):
        x = b("MatMul", x, np.eye(12, dtype=np.float32), name="y" if at == count - 1 else None)
        x = x if at == count - 1 else b("Relu", x)
    model = b.model({"x": (FLOAT, [3, 12])}, {"y": (FLOAT, [3, 12])})
    width, height = 4, 3
    report = run_report(comm, "graph", (width, height), model=str(folder(model, tmp_path)))
    lines = [width * (height - 1), height * (width - 1)]  # cores that send their sum
    assert report["measured"]["stages"] == sum(lines[at % 2] for at in range(count))
    assert report["measured"]["macs"] == 3 * 12 * 12 * count


@pytest.mark.mpi(ranks=[1])
def test_by_shape_counts_are_those_with_numbers(comm: Any, tmp_path: Path) -> None:
    for name in GRAPHS:
        (tmp_path / name).mkdir()
        arguments = options(name, tmp_path / name)
        with_numbers, without = (
            run_report(comm, "graph", (5, 3), payload=payload, **arguments | {"outputs": None})["measured"]
            for payload in (True, False)
        )
        assert with_numbers == without


@pytest.mark.mpi(ranks=[1])
def test_truth_values_can_be_what_comes_out(comm: Any, tmp_path: Path) -> None:
    b = Builder()
    b("Less", "x", np.zeros(1, np.float32), name="y")
    model = b.model({"x": (FLOAT, [3, 13])}, {"y": (TensorProto.BOOL, [3, 13])})
    arguments = {"model": str(folder(model, tmp_path)), "seed": 1}
    for report in (run_report(comm, "graph", (2, 2), **arguments), run_on_arm(comm, "graph", 3, **arguments)):
        assert report["result"]["max_abs_error"] == 0


@pytest.mark.mpi(ranks=[1])
def test_what_is_no_number_in_both_is_no_error(comm: Any, tmp_path: Path) -> None:
    """Logarithms of normal numbers; and what is a number in one alone is an error that has no size (null in JSON)."""
    b = Builder()
    b("Log", "x", name="y")
    model = b.model({"x": (FLOAT, [3, 13])}, {"y": (FLOAT, [3, 13])})
    arguments = {"model": str(folder(model, tmp_path)), "seed": 1}
    for report in (run_report(comm, "graph", (2, 2), **arguments), run_on_arm(comm, "graph", 3, **arguments)):
        assert 0 < report["result"]["max_abs_error"] < 1e-6
    feeds_ = {"x": np.float32([[-1.0, 2.0]])}
    for y, error in (([[np.nan, math.log(2)]], 0), ([[0, math.log(2)]], None), ([[np.nan, np.inf]], None)):
        graph = read_graph(Path(arguments["model"]))
        assert told(graph, feeds_, {"y": np.array(y)}, None)["max_abs_error"] == error


@pytest.mark.mpi(ranks=[1])
def test_weights_that_do_not_fit_are_refused(comm: Any, tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="--core-memory"):
        run_report(comm, "graph", (2, 2), "wse2", model=str(folder(product(256, 256), tmp_path)))


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("arguments, message", [
    ({}, "size 'batch'"), ({"sizes": "batch"}, "--sizes batch"), ({"sizes": "batch=0"}, "--sizes batch=0"),
    ({"sizes": "batch=3", "inputs": "in.npz"}, "'x' is"), ({"sizes": "batch=3", "inputs": "m.onnx"}, "cannot be read"),
    ({"model": None}, "--model is missing"), ({"model": "."}, "has no graph.json"),
])  # fmt: skip
def test_what_is_asked_wrong_is_refused(arguments: Any, message: str, comm: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.zeros((3, 12), np.float32))
    arguments = {"model": str(folder(mlp(), tmp_path))} | arguments
    for key in ("inputs", "model"):
        if arguments.get(key) in ("in.npz", "m.onnx", "."):
            arguments[key] = str(tmp_path / arguments[key])
    with pytest.raises((UsageError, ModelError), match=message):
        run_report(comm, "graph", (2, 2), **arguments)


@pytest.mark.parametrize("change, message", [
    ({"op": "Conv"}, "'nodes.op' is 'Conv'"), ({"inputs": ["nothing"]}, "takes 'nothing'"),
    ({"inputs": 3}, "'nodes.inputs'"),
])  # fmt: skip
def test_a_damaged_folder_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    place = folder(mlp(), tmp_path)
    said = json.loads((place / "graph.json").read_text())
    said["nodes"][0] |= change
    (place / "graph.json").write_text(json.dumps(said))
    with pytest.raises(ModelError, match=message):
        read_graph(place)


def test_a_node_that_does_not_go_with_its_input_is_named(tmp_path: Path) -> None:
    graph = read_graph(folder(product(4, 5), tmp_path))
    with pytest.raises(ModelError, match="node MatMul_0"):
        run_graph(graph, {"x": np.zeros((3, 7))})


def test_a_number_that_is_none_is_no_warning(tmp_path: Path) -> None:
    """NaN with its first bit of digits clear, which a processor signals when it is made float64."""
    graph = read_graph(folder(product(4, 5), tmp_path))
    signals = np.full((3, 4), 0x7FA00000, np.uint32).view(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (output,) = run_graph(graph, {"x": signals}).values()
    assert output.shape == (3, 5) and np.isnan(output).all()
