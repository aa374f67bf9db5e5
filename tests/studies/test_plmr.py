"""The PLMR check: fits, bounds, programs whose options follow the mesh, and the verdicts on what is packaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure import on_one_rank

from meshrt.errors import UsageError
from meshrt.mesh.devicefile import find_device
from meshrt.ranks.console import Console
from meshrt.studies.plmr import check as plmr
from meshrt.studies.plmr import expect, growth, subject
from meshrt.studies.plmr import table as plmr_table
from meshrt.studies.sweep import Outcome

SIZES = (8, 12, 16, 24)
GATHER = '''
"""Every core of a row gets the tiles of all: 2 N routes through every router, and N tiles at every core."""
import numpy as np
from meshrt.mesh.collectives.broadcast import spreads, start_allgather
from meshrt.mesh.wires.receiving import receive

def run(block, *, size: int = 4):
    """Gather."""
    tiles = block.tiles("tile", (size,), np.float32)
    tiles[...] = 0
    with spreads(block) as (along_x, _):
        receive(block, start_allgather(block, along_x, tiles))
    return {}
'''


def judged(comm: Any, *texts: str, sizes: tuple[int, ...] = SIZES, **limits: int) -> list[plmr.PlmrFinding]:
    subjects = [subject.parse(text) for text in texts]
    return plmr.check(comm, subjects, sizes, find_device("wse2", **limits), 8, Console())


def breaks(finding: plmr.PlmrFinding) -> str:
    """The letters that are violated."""
    return "".join(letter for letter, verdict in finding.verdicts.items() if verdict.ok is False)


# ------------------------------------------------------------------------------------------------------------- fits

sizes_of_meshes = st.lists(st.integers(2, 700), min_size=3, max_size=8, unique=True).map(sorted)


@given(sizes_of_meshes, st.floats(0, 3), st.floats(1e-3, 1e6))
def test_a_power_of_n_is_found(sizes: list[int], exponent: float, factor: float):
    fitted = growth.fit(sizes, [factor * n**exponent for n in sizes])
    assert fitted.exponent == pytest.approx(exponent, abs=1e-3)
    assert fitted.late == pytest.approx(exponent, abs=1e-3)
    assert not fitted.faster_than(exponent)
    assert not fitted.faster_than(exponent + 0.1)
    assert fitted.faster_than(exponent - growth.TOLERANCE - 0.01)


@given(st.lists(st.floats(0.95, 1.05), min_size=7, max_size=7), st.sampled_from([0.0, 1 / 3, 0.5, 1.0, 2.0]))
def test_names_stand_five_percent_of_noise(noise: list[float], exponent: float):
    sizes = (8, 12, 16, 24, 32, 48, 64)
    fitted = growth.fit(sizes, [9 * n**exponent * factor for n, factor in zip(sizes, noise, strict=True)])
    assert fitted.name == dict(growth.KNOWN)[exponent]


@given(sizes_of_meshes, st.data())
def test_what_reaches_a_limit_is_fitted_up_to_there(sizes: list[int], data: st.DataObject):
    limit = 3 * data.draw(st.sampled_from(sizes[1:]))
    fitted = growth.fit(sizes, [min(3 * n, limit) for n in sizes], limit)
    assert (fitted.exponent, fitted.late) == (pytest.approx(1, abs=1e-3), pytest.approx(1, abs=1e-3))
    assert growth.fit(sizes, [limit] * len(sizes), limit).name == "at its limit"
    assert not growth.fit(sizes, [limit] * len(sizes), limit).faster_than(0)


@given(sizes_of_meshes)
def test_zeros_are_constant_until_something_appears(sizes: list[int]):
    assert growth.fit(sizes, [0] * len(sizes)) == growth.Growth(0.0, 0.0, "constant")
    late = growth.fit(sizes, [0] * (len(sizes) - 1) + [5])
    assert late.exponent is None
    assert late.faster_than(0)


def test_what_levels_off_grows_no_more():
    for values in ((4, 5, 6, 7, 7, 7, 7), (0, 0, 5, 5, 5, 5, 5)):
        fitted = growth.fit((8, 12, 16, 24, 32, 48, 64), values)
        assert fitted.name == "levels off"
        assert not fitted.faster_than(0)


@pytest.mark.parametrize(
    ("text", "exponent"), [("1", 0), ("constant", 0), ("N", 1), ("n^2", 2), ("N^0.5", 0.5), ("N^(1/3)", 1 / 3)]
)
def test_growth_is_read(text: str, exponent: float):
    assert growth.parse(text) == pytest.approx(exponent)


# ----------------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    "text",
    ["", "entries", "entries=", "entries=many", "routes=3", "hops~M", "hops~2", "stages~N^(1/0)", "hops=2,", "a===2"],
)
def test_bounds_that_make_no_sense_are_refused(text: str):
    with pytest.raises(UsageError):
        expect.parse([text], [*plmr.METRICS])


def test_bounds_hold_or_say_where_they_do_not():
    values = {8: 7.0, 16: 15.0, 32: 31.0}
    grows = growth.fit([*values], [*values.values()])

    def lines(text: str) -> list[str]:
        return [line for bound in expect.parse([text], ["hops"]) for line in expect.broken(bound, values, grows)]

    for text in ("hops=31", "hops<=31", "hops<31.5", "hops>=7", "hops>6", "hops~N", "hops~N^2", "hops<40,hops~N"):
        assert lines(text) == [], text
    assert lines("hops=30") == ["hops at N = 32 is 31, expected at most 30"]
    assert lines("hops<15") == [f"hops at N = {n} is {n - 1}, expected less than 15" for n in (16, 32)]
    assert lines("hops>=8") == ["hops at N = 8 is 7, expected at least 8"]
    assert lines("hops~N^0.5") == [f"hops grows as N (fitted exponent {grows.exponent:.2f}), expected N^0.5"]
    assert len(lines("hops=8,hops~1")) == 3


def test_what_was_not_measured_holds_no_bound():
    (bound,) = expect.parse(["stages=3"], ["stages"])
    lines = expect.broken(bound, {8: 2.0, 16: None}, growth.fit([8], [2.0]))
    assert lines == ["stages at N = 16 could not be measured, expected at most 3"]


# ---------------------------------------------------------------------------------------------------------- subjects


def test_options_follow_the_mesh():
    parsed = subject.parse("gemm:m={4*N},k=64", ["n={N*N//2 - 3 % 2}"])
    assert parsed.arguments(10, 8) == {"m": 40, "k": 64, "n": 49}
    assert subject.parse("meshgemm:transpose_b=true").arguments(6, 2) == {
        "algorithm": "meshgemm", "m": 12, "k": 12, "n": 12, "transpose_b": True
    }  # fmt: skip
    assert subject.parse("ktree:groups=24,5").options["groups"] == "24,5", "a value may hold commas"
    assert (subject.parse("ktree").reach, subject.parse("gemm").steps) == ("line", "N")
    assert (subject.parse("ktree", reach="next").reach, subject.parse("gemm", steps="N-1").steps) == ("next", "N-1")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("gem", "no program"),
        ("xuv", "is for neuron: PLMR is of programs for a mesh of cores"),
        ("lowrank", "is for gpu"),
        ("llama-tiny:model=x,q=3", "no option 'q'"),
        ("nowhere.py", "no file"),
        ("gemm:q=3", "no option 'q'"),
        ("gemm:m", "not option=value"),
        ("gemm:m=N", "in braces"),
        ("gemm:m={N/2}", "not int"),
        ("gemm:m={M}", "no arithmetic"),
        ("gemm:m={N//0}", "no arithmetic"),
        ("gemm:m={().__class__}", "no arithmetic"),
        ("gemm:algorithm=strassen", "choose from"),
        ("gemm:transpose_b=maybe", "true or false"),
    ],
)
def test_wrong_subjects_are_named(text: str, word: str):
    with pytest.raises(UsageError, match=word):
        subject.parse(text)


def test_a_model_is_llama_with_it():
    parsed = subject.parse("llama-tiny:kv=concat")
    assert (parsed.program.name, parsed.options) == ("llama", {"model": "llama-tiny", "kv": "concat"})


def test_a_file_that_cannot_run_by_shape_is_told_so(run_meshrt: Callable[..., Any], tmp_path: Path):
    path = tmp_path / "shaped.py"
    path.write_text(GATHER.replace("tiles[...] = 0", "tiles[...] = np.zeros((*block.shape, 1))"))
    code, _, err, _ = run_meshrt("plmr", str(path), "--sizes", "4,6,8")
    assert code == 2
    assert err.startswith(f"meshrt: error: {path}, line 10: ValueError: ")
    assert err.endswith("by shape (--payload none) tiles are [1, 1, *tile], see block.lead\n")
    assert run_meshrt("run", str(path), "--mesh", "4x4").code == 0


@pytest.mark.parametrize("text", ["", "8", "8,16", "8,16,16", "1,2,3", "8,16,x", "8,16,-32", "8 16 32"])
def test_three_sizes_it_takes(text: str):
    with pytest.raises(UsageError, match="three different numbers"):
        plmr.parse_sizes(text)


# ---------------------------------------------------------------------------------------------------------- verdicts


def outcome(n: int, used: int) -> Outcome:
    path = {"hops": 2 * n, "stages": 0, "cycles": 9.0 * n}
    return Outcome({"measured": {
        "route_entries": {"max": 12}, "memory_bytes": {"max": 100}, "max_hops": 2, "critical_path": path,
        "cores_used": used,
    }})  # fmt: skip


@pytest.mark.parametrize(("used", "letters"), [(lambda n: n * n, ""), (lambda n: n, "P"), (lambda n: n * n // 3, "")])
def test_cores_left_idle_break_p(used: Callable[[int], int], letters: str):
    runs = {n: outcome(n, used(n)) for n in SIZES}
    assert breaks(plmr.judge(subject.parse("gemm"), runs, runs, find_device("wse2"), 8)) == letters


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "letters"), [("pipeline", "L"), ("ring", "L"), ("ktree", ""), ("ktree:phases=3", "")])
def test_figure_8(name: str, letters: str, comm):
    (finding,) = judged(comm, name)
    assert breaks(finding) == letters
    assert {verdict.ok for letter, verdict in finding.verdicts.items() if letter not in (letters, "P")} == {True}
    assert finding.grows["entries"].faster_than(0) is False
    stages = {"pipeline": lambda n: n - 1, "ring": lambda n: 2 * n - 3}.get(name)
    if stages:
        assert finding.values["stages"] == {n: stages(n) for n in SIZES}


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "letters"), [("allgather", "LMR"), ("summa", "LR"), ("cannon", "L")])
def test_figure_6(name: str, letters: str, comm):
    (finding,) = judged(comm, name)
    assert breaks(finding) == letters
    assert finding.values["hops"] == {n: n - 1 for n in SIZES}
    wanted = dict.fromkeys(SIZES, 12) if name == "cannon" else {n: 2 * n for n in SIZES}
    assert finding.values["entries"] == wanted
    assert all(used is not None and used <= 24 for used in finding.values["entries_used"].values())
    assert bool(finding.values["stages"][SIZES[-1]]) == (name != "cannon"), "what finds no route is relayed"


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("way, letters", [("ring", ""), ("multicast", "LR"), ("crossbar", "L")])
def test_ways_of_tokens_to_experts(way: str, letters: str, comm: Any) -> None:
    """Along whole lines: a ring keeps to the machine, routes from every core do not, nor does going core by core."""
    program = subject.parse(f"dispatch:dispatch={way}", reach="line")
    (finding,) = plmr.check(comm, [program], SIZES, find_device("wse2"), 8, Console())
    assert breaks(finding) == letters


@pytest.mark.mpi(ranks=[1, 2])
def test_meshgemm_keeps_to_all_four(comm):
    (finding,) = judged(comm, "meshgemm")
    assert breaks(finding) == ""
    assert finding.values["hops"] == dict.fromkeys(SIZES, 2)
    assert finding.values["entries"] == finding.values["entries_used"] == dict.fromkeys(SIZES, 12)
    assert finding.values["stages"] == dict.fromkeys(SIZES, 0)
    assert finding.values["memory"] == dict.fromkeys(SIZES, 7 * 8 * 8 * 4)


@pytest.mark.mpi(ranks=[1])
def test_a_title_says_the_tiles_that_there_are(comm):
    """Not those of `--tile` where m, k or n were said to be others."""
    (as_it_is, other) = judged(comm, "gemm", "gemm:algorithm=summa,m={3*N}", sizes=(2, 3, 4))
    lines = [text for text in plmr_table.said([as_it_is, other], find_device("wse2"), 8) if isinstance(text, str)]
    titles = [text for text in lines if "a step is" in text]
    assert ["8 x 8 tiles" in text for text in titles] == [True, False]


@pytest.mark.mpi(ranks=[1, 2])
def test_an_allgather_wants_what_the_device_has_not(comm, tmp_path: Path):
    path = tmp_path / "gather.py"
    path.write_text(GATHER)
    (finding,) = judged(comm, str(path), route_entries=20)
    assert breaks(finding) == "LMR"
    assert finding.values["entries"] == {n: 2 * n for n in SIZES}
    # Segments of 8, 6, 8 and 6 cores, with two lanes over the ends of two of them, and three where there are more.
    assert finding.values["entries_used"] == {8: 16, 12: 2 * (6 + 2), 16: 2 * (8 + 2), 24: 2 * (6 + 3)}
    assert finding.values["hops"] == {n: n - 1 for n in SIZES}
    assert finding.values["memory"] == {n: 4 * 4 * (n + 1) for n in SIZES}
    assert finding.values["stages"][8] == 0
    assert all(finding.values["stages"][n] for n in SIZES[1:]), "what finds no route is relayed"


@pytest.mark.mpi(ranks=[1, 2])
def test_a_refused_run_is_told_and_holds_no_bound(comm):
    (finding,) = judged(comm, "meshgemm:m={N*N}", core_memory=3000)
    assert breaks(finding) == "M"
    assert [*finding.refused] == [24]
    assert "the limit is 3000" in finding.refused[24]
    assert finding.refused[24].endswith("; --mesh 28x28 would do"), "as `meshrt fit` ends"
    assert finding.values["memory"][24] > 3000, "what it would have taken is measured without limits"
    assert finding.values["cycles"][24] is None
    lines = plmr.expected([finding], expect.parse(["hops=2"], [*plmr.METRICS]))
    assert len(lines) == 1
    assert "refused at N = 24" in lines[0]
    assert plmr.expected([finding], []) == []


@pytest.mark.mpi(ranks=[2, 3])
def test_any_number_of_ranks_finds_the_same(comm):
    def report_on(ranks: Any) -> str:
        device = find_device("wse2")
        return json.dumps(plmr_table.as_json(judged(ranks, "meshgemm", "ktree", sizes=(4, 6, 9)), device, 8, []))

    assert report_on(comm) == on_one_rank(comm, report_on)


# ------------------------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_job_can_guard_an_algorithm(ranks: int, run_meshrt: Callable[..., Any], tmp_path: Path):
    path, target = tmp_path / "gather.py", tmp_path / "told.json"
    path.write_text(GATHER)
    argv = ["plmr", f"{path}:size={{N//2}}", "--sizes", "4,6,8", "--json", str(target), "--expect"]
    code, out, err, _ = run_meshrt(*argv, "entries=15,hops~N,cycles<1e6", ranks=ranks)
    assert code == 3, err
    line = f"{path}:size={{N//2}}: entries at N = 8 is 16, expected at most 15"
    assert err == f"meshrt: error: a stated bound does not hold\n{line}\n"
    assert "violates R: entries wanted: 8 at N = 4, 16 at N = 8, grows as N" in out
    report = json.loads(target.read_text())
    assert report["broken"] == [line]
    assert report["programs"][0]["metrics"]["entries"]["values"] == [{"n": n, "value": 2 * n} for n in (4, 6, 8)]


def test_bounds_that_hold_are_code_0(run_meshrt: Callable[..., Any]):
    expected = "entries=12,hops=2,stages=0,memory=1792,memory~1,hops~1"
    code, out, err, _ = run_meshrt("plmr", "meshgemm", "--sizes", "4,8,12", "--expect", expected)
    assert (code, err) == (0, "")
    table = [line.rstrip() for line in out.splitlines()]
    assert max(map(len, table)) <= 80
    for row, cell in (("R entries wanted", "12 → 12"), ("L longest packet", "2 → 2"), ("R routing", "ok")):
        assert any(line.startswith(row) and line.endswith(cell) for line in table)


@pytest.mark.parametrize(
    "argv", [("cannons",), ("meshgemm", "--expect", "speed=3"), ("gemm", "--tile", "0"), ("shift", "--steps", "16-N")]
)
def test_wrong_usage_is_code_2(argv: tuple[str, ...], run_meshrt: Callable[..., Any]):
    code, out, err, _ = run_meshrt("plmr", *argv)
    assert (code, out) == (2, "")
    assert err.startswith("meshrt: error: ")
    assert err.count("\n") == 1


IDLE = '''
"""Some rows work."""
import numpy as np

def run(block, *, share: int = 2):
    """Work on the first 1/share of the rows."""
    rows = np.arange(block.mesh.y0, block.mesh.y0 + block.shape[0])[:, None]
    block.work(np.where(rows < block.mesh.height // share, 5, 0))
    return {}
'''


@pytest.mark.mpi(ranks=[1, 2])
def test_cores_used_are_counted(comm, tmp_path: Path):
    path = tmp_path / "idle.py"
    path.write_text(IDLE)
    half, row, whole = judged(comm, f"{path}:share=2", f"{path}:share={{N}}", "meshgemm")
    assert half.values["cores"] == dict.fromkeys(SIZES, 0.5)
    assert row.values["cores"] == {n: 1 / n for n in SIZES}
    assert whole.values["cores"] == dict.fromkeys(SIZES, 1.0)
    assert [breaks(finding) for finding in (half, row, whole)] == ["", "P", ""]
