"""`meshrt.run` and `meshrt.sweep` from a script or a notebook, alone and on several ranks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from mpi_jobs import Finished

import meshrt
from meshrt.alike import check_alike
from meshrt.errors import LimitError, UsageError
from meshrt.given import options_of
from meshrt.gpu.presets import A800
from meshrt.mesh.block import Block
from meshrt.mesh.collectives import rings, shifts
from meshrt.mesh.presets import IDEAL
from meshrt.mesh.wires.fabric import transfer
from meshrt.mesh.wires.receiving import receive
from meshrt.mesh.wires.routes import chain
from meshrt.mesh.wires.tables import installed
from meshrt.options import AtMost
from meshrt.program import settings_of
from meshrt.ranks.board import Board
from meshrt.ranks.failing import failure
from meshrt.ranks.host import ONE_THREAD
from meshrt.units import short

pytestmark = pytest.mark.mpi(ranks=[1])
SMALL: dict[str, Any] = {"m": 20, "k": 24, "n": 28}


def outside_host(report: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in report.items() if key != "host"}


# A notebook: NumPy has been imported, with as many threads as there are, before anything of meshrt.
NOTEBOOK = """
import sys
import numpy as np
np.ones((500, 500)) @ np.ones((500, 500))
import meshrt
report = meshrt.run("gemm", mesh="1x1", device="ideal", m=700, k=900, n=500)
report.write(sys.argv[1])
"""


def test_a_notebook_gives_the_bits_of_the_command(
    run_meshrt: Callable[..., Finished], run_script: Callable[..., Finished], tmp_path: Path
) -> None:
    command = run_meshrt(
        "run", "gemm", "--mesh", "1x1", "--device", "ideal", "--m", "700", "--k", "900", "--n", "500", "--json", "-"
    )
    path = tmp_path / "report.json"
    done = run_script(NOTEBOOK, str(path), env=dict.fromkeys(ONE_THREAD, "2"))
    assert done.code == 0, done.stderr
    from_notebook, from_command = json.loads(path.read_text()), json.loads(command.stdout)
    assert outside_host(from_notebook) == outside_host(from_command), "max_abs_error has all bits of the product"


def test_a_run_uses_one_thread_and_gives_the_others_back() -> None:
    from threadpoolctl import threadpool_info, threadpool_limits

    def threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    def own(block: Block) -> dict[str, Any]:
        return {"threads": max(threads())}

    with threadpool_limits(2, "blas"):
        assert meshrt.run(own, mesh=(2, 2)).result == {"threads": 1}
        assert threads() == {2}


def test_numbers_by_name() -> None:
    report = meshrt.run("shift", mesh=(4, 2), tile=2)
    data = json.loads(report.to_json())
    assert report["hops"] == data["measured"]["hops"] > 0
    assert report["link_bytes.max"] == data["measured"]["link_bytes"]["max"]
    assert report.phases == ["shift"] and report.phase("shift", "hops") == report.phase("shift")["hops"]
    assert (report.machine, report.kind("hops"), report.kind("stages")) == ("mesh", "counted", "declared")
    assert report.arguments["tile"] == 2 and report.result == data["result"] and report.measured == data["measured"]
    with pytest.raises(KeyError, match="no 'hoops'; a report has messages, hops"):
        report["hoops"]
    with pytest.raises(KeyError, match="no phase 'decode'; there are shift"):
        report.phase("decode")


@pytest.mark.parametrize(
    ("program", "options"),
    [("gemm", {"mesh": (8, 8)}), ("xuv", {"cores": 2, "m": 64, "k": 64, "r": 32, "n": 64}), ("lowrank", {"tp": 2})],
)
def test_a_table_for_people_and_one_for_notebooks(program: str, options: dict[str, Any]) -> None:
    report = meshrt.run(program, payload=False, **options)
    lines = str(report).splitlines()
    assert lines[0].startswith(f"{program} on ") and lines[-1].endswith("others counted")
    html = report._repr_html_()
    for cell in (*report.phases, "total", short(report["macs" if program == "gemm" else "flops"])):
        assert any(cell in line for line in lines) and f">{cell}<" in html, cell


@pytest.mark.parametrize(("program", "on"), [("gemm", None), ("xuv", None), ("lowrank", None), ("llama", "neuron")])
def test_size_is_a_word_of_every_machine(program: str, on: str | None) -> None:
    size: Any = (8, 8) if program == "gemm" else 2
    options = {"layers": 1} if program == "llama" else {}
    report = meshrt.run(program, on=on, size=size, payload=False, **options)
    assert report.data["mesh"] == ([8, 8] if program == "gemm" else [2, 1])


@pytest.mark.parametrize(
    ("program", "on", "own"),
    [("gemm", None, "core_memory"), ("llama", "neuron", "sbuf_bytes"), ("lowrank", None, "gpu_memory")],
)
def test_memory_is_a_word_of_every_machine(program: str, on: str | None, own: str) -> None:
    for word in ("memory", own):
        with pytest.raises(LimitError, match=r"\b100\b"):
            meshrt.run(program, on=on, payload=False, **{word: 100})
    with pytest.raises(UsageError, match=f"memory and {own} say the same thing"):
        meshrt.run(program, on=on, payload=False, **{"memory": 10**9, own: 10**9})


def test_a_device_of_ones_own_and_limits() -> None:
    from dataclasses import replace

    slow = meshrt.run("shift", mesh=(4, 1), tile=2, device=replace(IDEAL, name="slow", alpha=10.0))
    fast = meshrt.run("shift", mesh=(4, 1), tile=2, device="ideal")
    assert slow["critical_path.cycles"] == 10 * fast["critical_path.cycles"] > 0
    with pytest.raises(LimitError, match="the limit is 10 "):
        meshrt.run("shift", mesh=(4, 1), tile=2, core_memory=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesk": 3}, "gemm has no option 'mesk'; it has algorithm, .*, and mesh has mesh, device, .*, size, memory$"),
        ({"m": 0}, "m is 0; it starts at 1"),
        ({"m": 2.5}, "m is 2.5; it is a whole number"),
        ({"m": "many"}, "m is 'many'; it is a whole number"),
        ({"lockstep": 1}, "lockstep is 1; it is True or False"),
        ({"algorithm": "strassen"}, "algorithm is 'strassen'; there are meshgemm, cannon, summa, allgather"),
        ({"route_entries": 257}, "route_entries is 257; it is 1 to 256"),
        (
            {"device": "wse9"},
            "device is 'wse9'; on mesh there are wse2, wse3, wormhole, dojo, ideal, files as mine.toml",
        ),
        ({"on": "abacus"}, "no machine 'abacus': there are arm, gpu, mesh, neuron"),
        ({"mesh": "4by4"}, "mesh '4by4' is not WIDTHxHEIGHT"),
        ({"mesh": (2.5, 2)}, "mesh '2.5x2' is not WIDTHxHEIGHT, such as 8x8, with sides of 1 to 1000000"),
        ({"mesh": (2,)}, "mesh '2' is not WIDTHxHEIGHT"),
        ({"mesh": ()}, "mesh '' is not WIDTHxHEIGHT"),
        ({"size": (2, 2, 2)}, "mesh '2x2x2' is not WIDTHxHEIGHT"),
        ({"mesh": (0, 1)}, "mesh '0x1' is not WIDTHxHEIGHT"),
        ({"mesh": (-2, 3)}, "mesh '-2x3' is not WIDTHxHEIGHT"),
        ({"mesh": (2_000_000, 1)}, "mesh '2000000x1' is not WIDTHxHEIGHT"),
        ({"mesh": (True, 2)}, "mesh 'Truex2' is not WIDTHxHEIGHT"),
        ({"mesh": 4}, r"mesh is 4; it is WxH or \(W, H\)"),
        ({"size": 4}, r"size is 4; it is WxH or \(W, H\)"),
        ({"memory": 0}, "memory is 0; it starts at 1"),
        ({"core_memory": True}, "core_memory is True; it is a whole number"),
        ({"times": False}, "times is False; it is a whole number"),
        ({"device": A800}, "device a800 is of gpu, and gemm runs on mesh: give on='gpu', or another device"),
        ({"device": "a100"}, "device is 'a100'; on mesh there are wse2, wse3"),
        ({"spares": (1, 0.5), "defects": "0.01"}, "mesh '1x0.5' is not WIDTHxHEIGHT"),
        ({"spares": 4, "defects": "0.01"}, r"spares is 4; it is CxR or \(C, R\)"),
    ],
)
def test_what_cannot_be_is_an_exception(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        meshrt.run("gemm", **options)


def test_sizes_of_two_numbers_are_a_text_or_two_numbers() -> None:
    """And the report has the text, as that of the command."""
    common: dict[str, Any] = {"payload": False, "max_new_tokens": 2, "prompt_tokens": 4}
    cases: list[tuple[str, str, Any, Any, dict[str, Any]]] = [
        ("llama-tiny", "decode_mesh", "4x4", (4, 4), {"layers": 1, **common}),
        ("mixtral-tiny", "expert_grid", "2x1", (2, 1), {"layers": 1, "experts": "regions", **common}),
        ("linear", "tile", "8x8", (8, 8), {"m": 20, "k": 128, "n": 96, "payload": False}),
    ]
    for program, option, text, two, others in cases:
        said, given = (meshrt.run(program, **{option: value}, **others) for value in (text, two))
        assert said.arguments[option] == given.arguments[option] == text
        assert outside_host(dict(said.data)) == outside_host(dict(given.data))
    for size in ("4x2", (4, 2), (np.int64(4), np.int32(2))):
        assert meshrt.run("shift", mesh=size, tile=2).data["mesh"] == [4, 2]
    wrong: list[tuple[str, Any, str]] = [
        ("decode_mesh", (4, 0), "mesh '4x0' is not WIDTHxHEIGHT"),
        ("decode_mesh", "", "mesh '' is not WIDTHxHEIGHT"),
        ("decode_mesh", 4, r"decode_mesh is 4; it is WxH or \(W, H\)"),
        ("expert_grid", 4, r"expert_grid is 4; it is CxR or \(C, R\)"),
    ]
    for option, value, message in wrong:
        with pytest.raises(UsageError, match=message):
            meshrt.run("llama-tiny", **{option: value})
    with pytest.raises(UsageError, match=r"--expert-grid 2\.5x1: it is COLUMNSxROWS of regions, such as 4x2"):
        meshrt.run("mixtral-tiny", experts="regions", expert_grid=(2.5, 1))
    with pytest.raises(UsageError, match="--tile '8' is no tile such as 10x8"):
        meshrt.run("linear", tile=(8,))


def test_numbers_are_what_the_command_would_make_of_them() -> None:
    """A whole number is a choice's text, NumPy's numbers are Python's, and what is no number is refused as ever."""
    small: dict[str, Any] = {"m": 20, "k": 128, "n": 96, "tile": "8x8", "payload": False}
    for bits in (8, np.int64(8), "8"):
        assert meshrt.run("linear", bits=bits, **small).arguments["bits"] == "8"
    shape: dict[str, Any] = {"bits": 4, "ranks": "uniform-16", "prompt_tokens": 4, "max_new_tokens": 1, "layers": 1}
    report = meshrt.run("llama-tiny", compensator_bits=8, payload=False, **shape)
    assert report.arguments["compensator_bits"] == "8" and report.arguments["bits"] == 4
    for tile in (2, 2.0, np.int64(2), np.float32(2)):
        report = meshrt.run("shift", mesh=(4, 1), tile=tile)
        assert type(report.arguments["tile"]) is int and report.arguments["tile"] == 2
        report.to_json()
    same("llama-tiny", "link_rate", 1e10, [10**10, np.float32(1e10)], on="gpu", max_new_tokens=1, payload=False)
    with pytest.raises(UsageError, match=r"b is 10+ .*; it is a number of at most 1.8e"):
        meshrt.run(lambda block, *, b=1.0: {}, b=10**400)
    with pytest.raises(UsageError, match="has no option 'x'; it has none, and mesh has"):
        meshrt.run(lambda block: {}, x=1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"bits": 5}, "bits is 5; there are 4, 8"),
        ({"bits": True}, "bits is True; there are 4, 8"),
        ({"m": True}, "m is True; it is a whole number"),
        ({"cores": np.int64(0)}, "cores is 0; it starts at 1"),
        ({"m": 10**30}, f"m is {10**30}; it is a whole number of at most {2**53}"),
        ({"m": -(10**400)}, "m is -10+; it starts at 1"),
        ({"m": float("nan")}, "m is nan; it is a whole number"),
        ({"m": float("inf")}, "m is inf; it is a whole number"),
        ({"m": np.float32("nan")}, "m is nan; it is a whole number"),
        ({"cores": float("-inf")}, "cores is -inf; it is a whole number"),
        ({"cores": 1.5}, "cores is 1.5; it is a whole number"),
    ]
    for option, message in wrong:
        with pytest.raises(UsageError, match=message):
            meshrt.run("linear", **option)


def same(program: str, option: str, text: Any, given: list[Any], **others: Any) -> None:
    """Each of these is that text: the reports are equal to the byte but for the host's part."""
    said = outside_host(dict(meshrt.run(program, **{option: text}, **others).data))
    for value in given:
        report = outside_host(dict(meshrt.run(program, **{option: value}, **others).data))
        assert json.dumps(report) == json.dumps(said), (option, value)


def test_a_text_of_numbers_may_be_numbers(tmp_path: Path) -> None:
    """As a list, a tuple, a range or an array: the report has the text of the command."""
    few: dict[str, Any] = {"max_new_tokens": 1, "layers": 1, "payload": False}
    ids = [[1, 2, 3], (1, 2, 3), range(1, 4), np.array([1, 2, 3]), [np.int64(1), 2.0, "3"], np.array([1.0, 2.0, 3.0])]
    same("llama-tiny", "prompt_ids", "1,2,3", ids, **few)
    same("llama-tiny", "prompt_ids", "7", [7, [7], np.int32(7), np.array(7)], **few)
    same("llama-tiny", "prompt_ids", "1,2", [[1, 2], np.array([1, 2])], on="gpu", **few)
    same("llama-tiny", "kv_chunk", "16", [16, np.int64(16)], on="arm", **few)
    same("gemv", "groups", "4,2", [(4, 2), np.array([4, 2])], phases=3, k=64, n=64, mesh=(8, 8))
    same("gemv", "mesh", "4x2", [[4, 2], np.array([4, 2]), (4.0, 2.0)], k=64, n=64)
    same("gemv", "defects", "0.02", [0.02, np.float64(0.02)], k=64, n=64, mesh=(8, 8))
    served: dict[str, Any] = {"requests": 2, "output_tokens": 2, "payload": False}
    same("serve", "prompt_tokens", "4:8", [(4, 8), np.array([4, 8])], **served)
    same("serve", "prompt_tokens", "4", [4], **served)
    served["prompt_tokens"] = 4
    same("serve", "metric_percentiles", "50,99.9", [(50, 99.9), [50.0, "99.9"]], **served)
    same("serve", "percentile_metrics", "ttft,itl", [["ttft", "itl"]], **served)
    traced = meshrt.run("shift", mesh=(4, 2), tile=2, trace=tmp_path / "a", trace_cores=[(0, 0), (3, "*")])
    plain = meshrt.run("shift", mesh=(4, 2), tile=2, trace=str(tmp_path / "b"), trace_cores="0,0;3,*")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() and traced.measured == plain.measured


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "--prompt-ids '' is not a list of numbers such as 1,2,3"),
        ([1, "x"], "--prompt-ids '1,x' is not a list of numbers such as 1,2,3"),
        ([1.5, 2], "--prompt-ids '1.5,2' is not a list of numbers"),
        ([True], "--prompt-ids 'True' is not a list of numbers"),
        ([[1, 2], [3, 4]], r"--prompt-ids '\[1, 2\],\[3, 4\]' is not a list of numbers"),
        ([512], "token id 512 is not in the model's vocabulary of 512: 0 to 511"),
        (True, r"prompt_ids is True; it is a text \(token ids instead of text: 1,2,3\)"),
        ({1, 2}, r"prompt_ids is \{1, 2\}; it is a text \(token ids instead of text: 1,2,3\)"),
    ],
)
def test_numbers_are_refused_as_their_text_is(value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        meshrt.run("llama-tiny", prompt_ids=value, max_new_tokens=1)


def test_files_may_be_paths(tmp_path: Path) -> None:
    """And models' folders; the report has the text. A text that is no name of a file is none that may be a path."""
    few: dict[str, Any] = {"max_new_tokens": 1, "layers": 1}
    folder = Path(meshrt.__file__).parent / "models" / "llama-tiny"
    assert folder.is_dir()
    same("llama", "model", str(folder), [folder], **few)
    path = tmp_path / "logits.npy"
    same("llama-tiny", "logits", str(path), [path], **few)
    assert np.load(path).dtype == np.float32
    maps = tmp_path / "maps.npz"
    meshrt.run("shift", mesh=(4, 2), tile=2, maps=maps).write(tmp_path / "report.json")
    assert maps.is_file() and json.loads((tmp_path / "report.json").read_text())["program"] == "shift"
    device = tmp_path / "mine.toml"
    device.write_text('name = "mine"\nalpha = 2.0\n')
    assert meshrt.run("shift", mesh=(4, 2), tile=2, device=device).data["device"]["name"] == "mine"
    with pytest.raises(UsageError, match=r"prompt is PosixPath\('a.txt'\); it is a text \(.*@FILE a file"):
        meshrt.run("llama-tiny", prompt=Path("a.txt"))


def test_a_dtype_is_its_name_and_a_flag_may_be_numpys() -> None:
    import ml_dtypes

    for dtype in (np.float16, np.dtype("float16"), np.dtype(np.float16).newbyteorder("=")):
        same("gemm", "dtype", "float16", [dtype], mesh=(2, 2), **SMALL)
    same("gemm", "dtype", "bfloat16", [ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)], mesh=(2, 2), **SMALL)
    same("gemm", "lockstep", True, [np.True_, np.array(True)], mesh=(2, 2), **SMALL)
    same("gemm", "m", 16, [np.array(16), np.uint8(16)], mesh=(2, 2), k=8, n=8)
    assert "max_abs_error" not in meshrt.run("gemm", mesh=(2, 2), payload=np.False_, **SMALL).result
    for dtype, shown in (
        (float, "<class 'float'>"),
        (np.float64, "<class 'numpy.float64'>"),
        (np.dtype("i4"), "dtype"),
    ):
        with pytest.raises(UsageError, match=f"dtype is {shown}.*; there are float32, bfloat16, float16"):
            meshrt.run("gemm", dtype=dtype)


def test_several_values_for_one_are_for_a_sweep() -> None:
    for call in (meshrt.run, meshrt.sweep):
        with pytest.raises(
            UsageError, match=r"m is \(16, 32\); it is a whole number; `meshrt.sweep` runs each value of"
        ):
            call("gemm", m=(16, 32))
        with pytest.raises(UsageError, match=r"m is \{16\}; it is a whole number; `meshrt.sweep` runs each value of a"):
            call("gemm", m={16})
    with pytest.raises(
        UsageError, match=r"dtype is .*; there are float32, .*; `meshrt.sweep` runs each value of a list"
    ):
        meshrt.run("gemm", dtype=["float16", "float32"])
    with pytest.raises(UsageError) as long:
        meshrt.run("gemm", m=list(range(100_000)))
    assert len(str(long.value)) < 500
    small: dict[str, Any] = {"mesh": (2, 2), "k": 8, "n": 8, "payload": False}
    for sizes in (range(8, 17, 8), np.array([8, 16]), [np.int64(8), 16.0]):
        assert [report.arguments["m"] for report in meshrt.sweep("gemm", m=sizes, **small)] == [8, 16]
    few: dict[str, Any] = {"max_new_tokens": 1, "layers": 1, "payload": False}
    for prompts in ([(1, 2), "3,4"], [[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])):
        swept = meshrt.sweep("llama-tiny", prompt_ids=prompts, **few)
        assert [report.arguments["prompt_ids"] for report in swept] == ["1,2", "3,4"]
    (alone,) = meshrt.sweep("llama-tiny", prompt_ids=(1, 2), **few)
    assert alone.arguments["prompt_ids"] == "1,2"


def test_what_is_no_program_or_communicator_is_told() -> None:
    def own(block: Block, *, size: int = 1) -> dict[str, Any]:
        return {}

    wrong: Any
    for wrong in (None, 3, np, ["gemm"], partial(own, size=3)):
        for call in (meshrt.run, meshrt.sweep, meshrt.fit):
            with pytest.raises(
                UsageError, match=r"program is .*; it is the name of a program or a model, the path of a"
            ):
                call(wrong)
    for wrong in (3, "all"):
        for run in (meshrt.run, meshrt.sweep):
            with pytest.raises(UsageError, match=f"comm is {wrong!r}; it is a communicator of mpi4py's"):
                run("gemm", comm=wrong)
    with pytest.raises(UsageError, match="did you mean gemv or gemm"):
        meshrt.run(Path("gemn"))


def test_a_report_tells_which_numbers_it_has() -> None:
    report = meshrt.run("shift", mesh=(4, 2), tile=2)
    assert "hops" in report and "link_bytes.max" in report and "link_bytes" in report
    assert "hop" not in report and "hops.max" not in report and 0 not in report
    with pytest.raises(KeyError, match="no 0; a report has messages"):
        report[0]  # type: ignore[index]  # no path, as a user may have it: the message is what is tried
    with pytest.raises(TypeError, match="'Report' object is not iterable"):
        list(report)  # type: ignore[call-overload]  # as a user may have it: the message is what is tried
    whole = report.to_json()
    report["link_bytes"].clear(), report.measured["link_bytes"].clear()
    report.phase(report.phases[0])["link_bytes"].clear(), report.arguments.clear()
    assert report.to_json() == whole
    with pytest.raises(KeyError, match="no 'hop'; a report has messages"):
        report.kind("hop")
    hints = {"cycles": "critical_path.cycles", "measured.hops": "hops", "max": "link_bytes.max or ramp_bytes.max or"}
    for name, hint in hints.items():
        with pytest.raises(KeyError, match=rf"no '{name}'; did you mean {hint}.* a report has messages"):
            report[name]
    with pytest.raises(KeyError, match=r"'link_bytes' is several numbers: link_bytes.total, link_bytes.max"):
        report.kind("link_bytes")
    with pytest.raises(UsageError, match=r"the report /nowhere/r.json cannot be written"):
        report.write("/nowhere/r.json")
    no_names: list[Any] = [None, "", 3]
    for nothing in no_names:
        with pytest.raises(UsageError, match=rf"the report is to be written to {nothing!r}: give the name of a file"):
            report.write(nothing)
    (full,) = meshrt.sweep("gemm", core_memory=[10])
    assert "hops" not in full
    asks: list[Callable[[], Any]] = [
        lambda: full["hops"], lambda: full.result, lambda: full.measured, lambda: full.phases,
        lambda: full.phase("sum"), lambda: full.kind("hops"),
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(KeyError, match=r"the run was refused: core .* the limit is 10 "):
            ask()


def test_a_range_is_told_as_far_as_there_is_one() -> None:
    def own(block: Block, *, share: Annotated[float, "", AtMost(0.5)] = 0.5) -> dict[str, Any]:
        return {}

    for share in (0.75, float("nan")):
        with pytest.raises(UsageError, match=f"share is {share}; it is 0.5 at most"):
            meshrt.run(own, mesh=(1, 1), share=share)


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        ("llama-tiny", {"decode_phases": 0}, "decode_phases is 0; it is 1 to 64"),
        ("llama-tiny", {"decode_regions": 0}, "decode_regions is 0; it starts at 1"),
        ("llama-tiny", {"temperature": float("inf")}, "temperature is inf; it is at least 0 and below inf"),
        ("llama-tiny", {"top_p": float("nan")}, "top_p is nan; it is above 0 and 1 at most"),
        ("serve", {"burstiness": 0.0, "rate": 1.0}, "burstiness is 0.0; it is above 0$"),
        ("serve", {"rate": float("inf")}, "rate is inf; it is 0 to 1000000000$"),
        ("serve", {"rate": 1e-12}, "rate is 1e-12; it is 0, or 1e-09 to 1e.09 a second"),
        ("serve", {"random_range_ratio": 1}, "random_range_ratio is 1; it is at least 0 and below 1"),
        ("lowrank", {"ratio": -0.5, "payload": False}, "ratio is -0.5; it is at least 0 and below 1"),
        ("lowrank", {"capacity": 0}, "capacity is 0; it is above 0"),
        ("lowrank", {"link_rate": 0}, "link_rate is 0; it is 1e-15 to 1e.18"),
    ],
)
def test_ranges_are_those_of_the_option(program: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        meshrt.run(program, **options)


def test_zero_and_infinity_stay_where_they_mean_something() -> None:
    """All at once, and gaps that are even."""
    few: dict[str, Any] = {"requests": 3, "prompt_tokens": "4", "output_tokens": "2", "payload": False}
    for load in ({"rate": 0}, {"rate": 9.0, "burstiness": float("inf")}):
        assert meshrt.run("serve", tp=1, **load, **few).result["completed"] == 3


def test_a_phase_is_named_and_has_tokens_on_every_machine() -> None:
    """What has one name is added up, where the first of it was."""

    def twice(machine: Any) -> dict[str, Any]:
        for name in ("a", "b", "a"):
            with machine.phase(name, tokens=3):
                pass
        return {}

    for on in ("mesh", "neuron", "gpu", "arm"):
        report = meshrt.run(twice, on=on, size=(1, 1) if on == "mesh" else 1)
        assert report.phases == ["a", "b"] and report.phase("b")["name"] == "b"
        assert (report.phase("a", "tokens"), report.phase("b", "tokens")) == (6, 3)


def test_phases_of_one_name_are_the_sum_of_what_they_would_be_by_themselves() -> None:
    """Counts and times add up; what is the most of something is that of one of them."""

    def works(block: Any, names: tuple[str, str]) -> dict[str, Any]:
        for name, nbytes in zip(names, (40, 1000), strict=True):
            with block.phase(name), block.memory.hold("held", nbytes):
                block.work(nbytes)
        return {}

    def alike(block: Any) -> dict[str, Any]:
        return works(block, ("a", "a"))

    def unlike(block: Any) -> dict[str, Any]:
        return works(block, ("a", "b"))

    both, apart = meshrt.run(alike, size=(3, 2)), meshrt.run(unlike, size=(3, 2))
    assert both.measured == apart.measured and both.phases == ["a"] and apart.phases == ["a", "b"]
    assert [phase["name"] for phase in both.data["host"]["phases"]] == ["a"]
    small, large = apart.phase("a"), apart.phase("b")
    for path in ("critical_path.cycles", "critical_path.seconds", "macs"):
        assert 0 < both.phase("a", path) == pytest.approx(apart.phase("a", path) + apart.phase("b", path))
    most = [part["memory_bytes"]["max"] for part in (both.phase("a"), small, large)]
    assert most[0] == most[2] > most[1] > 0


def test_a_report_in_one_line_and_in_html_has_no_more_than_its_table() -> None:
    report = meshrt.run("gemm", mesh=(2, 2), **SMALL)
    assert repr(report) == f"<Report: gemm on mesh 2x2, 0 phases, {report['critical_path.cycles']:g} cycles>"
    report = meshrt.run("lowrank", payload=False)
    assert repr(report).startswith("<Report: lowrank on gpu 1x1, 2 phases, ") and repr(report).endswith(" seconds>")
    (full,) = meshrt.sweep("gemm", core_memory=[10])
    assert repr(full) == "<Report: gemm on mesh, refused>"
    names = report.table(verbose=True).splitlines()[2:-1]
    shown = report.table().splitlines()[2:-1]
    rows = list(re.findall(r"<tr><th style='text-align:left'>([^<]*)<", report._repr_html_()))
    assert len(rows) == len(shown) < len(names)


def test_payload_is_said_as_the_command_says_it_or_true_or_false() -> None:
    for word, numbers in (("none", False), (False, False), ("full", True), (True, True)):
        report = meshrt.run("gemm", mesh=(2, 2), payload=word, **SMALL)
        assert ("max_abs_error" in report.result) == numbers, word
        (swept,) = meshrt.sweep("gemm", mesh=(2, 2), payload=word, **SMALL)
        assert ("max_abs_error" in swept.result) == numbers, word
    wrong: Any
    for wrong in ("some", "", 1, None, ["none"]):
        for call in (meshrt.run, meshrt.sweep):
            with pytest.raises(UsageError, match=re.escape(f"payload is {wrong!r}; it is True or 'full', or False")):
                call("gemm", mesh=(2, 2), payload=wrong, **SMALL)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("run llama-tiny --on gpu --tp 2 --size 4", "--size and --tp"),
        ("run gemm --mesh=4x4 --size 4x4", "--mesh and --size"),
        ("run llama-tiny --on neuron --memory 100000 --sbuf-bytes 100000", "--memory and --sbuf-bytes"),
        ("run llama-tiny --on arm --dram 100000 --memory=100000", "--dram and --memory"),
        ("fit gemm --memory 100 --core-memory 100", "--core-memory and --memory"),
    ],
)
def test_the_command_refuses_two_words_for_the_same(line: str, names: str, run_meshrt: Callable[..., Finished]) -> None:
    done = run_meshrt(*line.split())
    assert done.code == 2 and f"error: {names} say the same thing: give one of them" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1


def test_a_word_as_a_text_is_no_option(run_meshrt: Callable[..., Finished]) -> None:
    done = run_meshrt("run", "llama-tiny", "--prompt", "--size", "--mesh", "8x8", "--max-new-tokens", "1", "-q")
    assert done.code == 0, done.stderr


def test_the_command_refuses_in_the_same_words(run_meshrt: Callable[..., Finished]) -> None:
    """With flags for names."""
    done = run_meshrt("run", "gemm", "--m", "0")
    assert (done.code, done.stderr) == (2, "meshrt: error: --m is 0; it starts at 1\n")
    done = run_meshrt("run", "gemm", "--route-entries", "257")
    assert (done.code, done.stderr) == (2, "meshrt: error: --route-entries is 257; it is 1 to 256\n")


def halo(block: Block, *, rounds: int = 1) -> dict[str, Any]:
    """Every core's number goes round its row."""
    tiles = block.tiles("number", (1,), np.float32)
    tiles[...] = np.arange(block.mesh.x0, block.mesh.x0 + block.shape[1], dtype=np.float32)[:, None]
    with rings.interleaved_ring(block, "x") as ring:
        for _ in range(rounds):
            coming = block.tiles("number coming in", (1,), np.float32)
            receive(block, shifts.start_shift(block, ring, tiles, coming))
            tiles = coming
    return {"sum": float(tiles.sum())}


def forgets(block: Block) -> dict[str, Any]:
    tiles = block.tiles("number", (1,), np.float32)
    with rings.interleaved_ring(block, "x") as ring:
        shifts.start_shift(block, ring, tiles, block.tiles("coming in", (1,), np.float32))
    return {}


def test_a_function_is_a_program() -> None:
    report = meshrt.run(halo, mesh=(5, 2), rounds=3)
    assert report.data["program"] == "halo" and report.arguments == {"rounds": 3}
    assert report.result["sum"] == 20.0 and report["messages"] == 3 * 10
    with pytest.raises(UsageError, match="halo has no option 'round'"):
        meshrt.run(halo, mesh=(5, 2), round=3)
    with pytest.raises(UsageError, match=r"forgets of test_api\.py, line .*: nobody has received"):
        meshrt.run(forgets, mesh=(5, 2))


def test_an_option_without_an_annotation_is_of_the_kind_of_its_default(
    run_meshrt: Callable[..., Finished], tmp_path: Path
) -> None:
    # Nothing is said of the options: that their kind is that of the default is what is tried.
    def own(block: Block, *, size=8, share=0.5, text="a", flag=False, other=None):  # type: ignore[no-untyped-def]
        return {"values": [size, share, text, flag, other], "kinds": [type(size).__name__, type(share).__name__]}

    assert meshrt.run(own, mesh=(1, 1)).result == {"values": [8, 0.5, "a", False, None], "kinds": ["int", "float"]}
    given = meshrt.run(own, mesh=(1, 1), size=np.int64(9), share=1, text="b", flag=np.True_, other="c")
    assert given.arguments == {"size": 9, "share": 1, "text": "b", "flag": True, "other": "c"}
    for name, value, what_it_is in (("size", "9", "a whole number"), ("share", "9", "a number"), ("text", 9, "a text")):
        with pytest.raises(UsageError, match=f"{name} is {value!r}; it is {what_it_is}"):
            meshrt.run(own, mesh=(1, 1), **{name: value})
    program = tmp_path / "own.py"
    program.write_text("def run(block, *, size=8):\n    return {'next': size + 1}\n")
    done = run_meshrt("run", str(program), "--size", "9")
    assert done.code == 0 and done.stdout.startswith("next: 10\n"), done.stderr


def test_a_functions_error_is_pythons_with_what_was_meant() -> None:
    def without(block: Block) -> dict[str, Any]:
        way: Any = installed(block, "x", chain)
        return {"tiles": transfer(block, way, block.tiles("t", (1,), np.float32))}

    def swapped(block: Block) -> dict[str, Any]:
        with installed(block, "x", chain) as way:
            wrong: Any = [1]
            return {"tiles": transfer(block, way, wrong)}

    def width(block: Any) -> dict[str, Any]:
        return {"width": block.width}

    notes = {
        without: "what installs routes is for a `with`: with installed(...) as way",
        swapped: "`tiles` of transfer is [1]; it is an array, [bh, bw, *tile]",
        width: "did you mean mesh.width?",
    }
    for own, note in notes.items():
        with pytest.raises(AttributeError) as raised:
            meshrt.run(own, mesh=(4, 1))
        assert raised.value.__notes__ == [f"meshrt: {note}"]


def test_a_result_may_have_numbers_of_ml_dtypes() -> None:
    import ml_dtypes

    def own(block: Block) -> dict[str, Any]:
        return {"sum": np.ones(3, ml_dtypes.bfloat16).sum(), "all": np.ones(2, ml_dtypes.bfloat16)}

    assert meshrt.run(own, mesh=(1, 1)).result == {"sum": 3.0, "all": [1.0, 1.0]}


def test_a_sweep_takes_every_combination_in_order() -> None:
    every = meshrt.sweep("gemm", mesh="8x8", m=[16, 32], algorithm=["meshgemm", "cannon"], k=16, n=16, payload=False)
    assert [(report.arguments["m"], report.arguments["algorithm"]) for report in every] == [
        (16, "meshgemm"), (16, "cannon"), (32, "meshgemm"), (32, "cannon"),
    ]  # fmt: skip
    alone = meshrt.run("gemm", mesh="8x8", m=32, k=16, n=16, algorithm="cannon", payload=False)
    assert outside_host(dict(every[3].data)) == outside_host(dict(alone.data))


def test_runs_of_a_sweep_do_not_write_one_file(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("a.npz", "b.npz")]
    reports = meshrt.sweep("shift", mesh="2x2", steps=1, maps=files)
    assert len(reports) == 2 and all(Path(file).is_file() for file in files)
    for program, name in (("shift", "maps"), ("shift", "trace"), ("shift", "goal"), ("llama-tiny", "logits")):
        with pytest.raises(UsageError, match=f"{name} is '.*x' in 2 runs, each of which would write it: leave it away"):
            meshrt.sweep(program, mesh=["2x2", "4x4"], **{name: str(tmp_path / "x")})
    same = {"maps": Path(files[0]), "trace": files[0]}
    with pytest.raises(UsageError, match=r"--(maps|trace) and --(trace|maps) both name .*a.npz: give each a file"):
        meshrt.run("shift", mesh="2x2", steps=1, **same)
    with pytest.raises(UsageError, match="checkpoint is 'state' in 2 runs"):
        meshrt.sweep("llama-tiny", on="gpu", tp=[1, 2], checkpoint=Path("state"))


def test_a_sweep_goes_past_a_limit_and_not_past_a_mistake() -> None:
    small, large = meshrt.sweep("gemm", mesh=(4, 4), k=16, n=16, m=[16, 100_000], payload=False)
    assert small.refused is None and small["macs"] == 16**3
    assert large.refused is not None and "'A' asks for" in large.refused and large.arguments["m"] == 100_000
    assert "refused" in str(large) and "refused" in large._repr_html_()
    (full,) = meshrt.sweep("gemm", mesh=[(4, 4)], m=1000, k=64, n=64, payload=False)
    line = meshrt.fit("gemm", mesh=(4, 4), m=1000, k=64, n=64).line()
    assert full.refused is not None and full.refused.endswith(f"; {line}") and line.endswith("--mesh 5x5 would do")
    assert json.loads(full.to_json())["refused"] == full.refused
    tried = meshrt.sweep("gemm", mesh=["2x2", "2x3"], m=100_000, device=IDEAL, core_memory=9, payload=False)
    settings = [json.loads(report.to_json())["settings"] for report in tried]  # else nothing would tell them apart
    assert [each.pop("mesh") for each in settings] == ["2x2", "2x3"]
    assert settings == 2 * [{"device": "ideal", "core_memory": 9}]
    with pytest.raises(LimitError) as alone:
        meshrt.run("gemm", mesh=(4, 4), m=1000, k=64, n=64, payload=False)
    assert alone.value.__notes__ == [line]
    with pytest.raises(UsageError, match="m is 0"):
        meshrt.sweep("gemm", m=[16, 0])
    for nothing in ([], range(0), np.array([])):
        with pytest.raises(UsageError, match=r"m is .*: a sweep needs a value at least"):
            meshrt.sweep("gemm", k=[16, 32], m=nothing)


SCRIPT = """
import json, sys
import meshrt
from meshrt.errors import UsageError
first = meshrt.run("gemm", mesh=(4, 4), m=20, k=24, n=28)
second = meshrt.run("llama-tiny", max_new_tokens=3)
try:
    meshrt.run("gemm", m=0)
except UsageError as error:
    refused = str(error)
many = meshrt.sweep("gemm", mesh="8x8", m=[16, 32, 48], k=16, n=16, algorithm=["meshgemm", "cannon"])
told = [{key: value for key, value in one.data.items() if key != "host"} for one in (first, second, *many)]
from mpi4py import MPI
every = MPI.COMM_WORLD.gather([told, refused])
if every:
    assert all(one == every[0] for one in every), "all ranks have the reports"
    print(json.dumps(every[0]))
if sys.argv[1:]:
    meshrt.run("gemm", mesh=(4, 4), m=2000)
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_script_gives_the_same_on_any_number_of_ranks(ranks: int, run_script: Callable[..., Finished]) -> None:
    alone, shared = run_script(SCRIPT), run_script(SCRIPT, ranks=ranks)
    assert (alone.code, shared.code) == (0, 0), [alone.stderr, shared.stderr]
    assert alone.stdout == shared.stdout and alone.stdout


def test_an_error_in_the_midst_ends_all_ranks(run_script: Callable[..., Finished]) -> None:
    done = run_script(SCRIPT, "on", ranks=2)
    assert done.code == 3 and "asks for 128000 bytes" in done.stderr and "Traceback" not in done.stderr, done.stderr


class OfTwo:
    """Rank 1 of two, of which rank 0 asks for what came here first."""

    size, rank, allgather = 2, 1, None
    first: Any = None

    def bcast(self, value: Any) -> Any:
        self.first = value if self.first is None else self.first
        return self.first


def test_ranks_that_ask_for_different_runs_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as with a seed that each draws: what each computes would be mixed, and reported with rank 0's."""
    monkeypatch.setattr(failure, "run_guarded", lambda work: work(comm, Board.alone()))
    for call in (meshrt.run, meshrt.sweep):
        for first, other, message in (
            ({}, {"seed": 1}, "seed is 1 on rank 1 and 0 on rank 0: all ranks make the same calls; what is drawn"),
            ({"device": "wse3"}, {"device": IDEAL}, r"device is Device\(name='ideal'.*\.\.\. on rank 1 and 'wse3' on"),
            ({}, {"payload": False}, "payload is False on rank 1 and True on rank 0"),
        ):  # fmt: skip
            comm: Any = OfTwo()  # in place of mpi4py's
            check_alike(comm, [options_of("gemm", None, first)], True)
            with pytest.raises(UsageError, match=message):
                call("gemm", comm=comm, **other)
    comm = OfTwo()
    for node in "ab":  # which may have files of their own
        check_alike(comm, [options_of("llama-tiny", None, {"logits": f"/{node}/l.npy", "maps": f"{node}.npz"})], True)
    with pytest.raises(UsageError, match="program is 'gemm' on rank 1 and 'llama' on rank 0"):
        meshrt.run("gemm", comm=comm)
    with ThreadPoolExecutor(1) as pool:
        for call in (meshrt.run, meshrt.sweep):
            with pytest.raises(UsageError, match=r"are for the main thread, .* comm=MPI.COMM_SELF"):
                pool.submit(call, "gemm", comm=comm).result()
    with pytest.raises(UsageError, match="rank 1 asks for 2 runs and rank 0 for 1"):
        meshrt.sweep("gemm", m=[1, 2], comm=comm)


def test_settings_have_their_help() -> None:
    for machine in ("mesh", "neuron", "gpu"):
        assert all(option.help or option.name == "device" for option in settings_of(machine).values())
