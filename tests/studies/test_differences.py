"""Two reports compared, bounds on one, and a program for every combination of its options."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import meshrt
from meshrt.errors import UsageError
from meshrt.studies import bounds, combinations
from meshrt.studies.differences import above, check_patterns, differences

Run = Callable[..., Any]

BEFORE = {
    "arguments": {"m": 64, "kv": None},
    "measured": {"hops": 100, "link_bytes": {"total": 8}, "stages": 0, "same": 3},
    "phases": [{"name": "prefill", "hops": 60}, {"name": "decode", "hops": 40}, {"name": "decode", "hops": 1}],
    "result": {"text": "a", "ok": True, "ids": [1, 2]},
    "host": {"wall_seconds": 1.0},
    "kinds": {"measured.hops": "counted"},
}
AFTER = {
    "arguments": {"m": 65, "kv": None},
    "measured": {"hops": 105, "link_bytes": {"total": 4}, "stages": 2, "same": 3},
    "phases": [{"name": "decode", "hops": 40}, {"name": "prefill", "hops": 60}, {"name": "decode", "hops": 3}],
    "result": {"text": "b", "ok": 1, "ids": [1, 2, 3]},
    "host": {"wall_seconds": 2.0},
    "kinds": {"measured.hops": "timed"},
}


def test_what_differs_is_found_by_name_and_all_of_it() -> None:
    by_path = {
        difference.path: (difference.before, difference.after, difference.change)
        for difference in differences(BEFORE, AFTER)
    }
    assert by_path == {
        "arguments.m": (64, 65, 1 / 64),
        "measured.hops": (100, 105, 0.05),
        "measured.link_bytes.total": (8, 4, -0.5),
        "measured.stages": (0, 2, float("inf")),
        "phases.decode#2.hops": (1, 3, 2.0),
        "result.text": ("a", "b", None),
        "result.ok": (True, 1, None),
        "result.ids.2": ("absent", 3, None),
    }
    assert differences(BEFORE, BEFORE) == []
    assert "host.wall_seconds" in [difference.path for difference in differences(BEFORE, AFTER, left_out=("kinds",))]
    assert [difference.path for difference in differences(BEFORE, AFTER, ["*hops"])] == [
        "measured.hops",
        "phases.decode#2.hops",
    ]


def test_a_share_is_of_results_and_in_both_directions() -> None:
    changed = differences(BEFORE, AFTER, ["measured.hops", "measured.link*", "arguments.*"])
    assert above(changed, 0.5) == []
    assert [line.split(" was ")[0] for line in above(changed, 0.05)] == ["measured.link_bytes.total"]
    assert above(changed, 0.0499) == [
        "measured.hops was 100 and is 105: +5 %",
        "measured.link_bytes.total was 8 and is 4: -50 %",
    ]
    assert above(differences(BEFORE, AFTER, ["measured.stages"]), 1e9) == [
        "measured.stages was 0 and is 2: from nothing"
    ]


def test_a_number_that_becomes_none_is_above_any_share_and_one_that_stays_none_is_no_change() -> None:
    nan = float("nan")
    assert above(differences({"result": {"error": 0.5}}, {"result": {"error": nan}}), 1e9) == [
        "result.error was 0.5 and is nan: +nan %"
    ]
    assert len(above(differences({"result": {"error": nan}}, {"result": {"error": 0.5}}), 1e9)) == 1
    assert differences({"result": {"error": nan}}, {"result": {"error": nan}}) == []


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("hops", "a pattern is of a whole path: did you mean measured.hops or phases.prefill.hops or .* or *.hops?"),
        ("stages", "a pattern is of a whole path: did you mean measured.stages or *.stages?"),
        ("measured.hop", "did you mean measured.hops"),
        ("macs,energy", "a pattern is of a whole path, such as measured.hops or *hops"),
        ("host.*", "host and kinds are left out, of which --host adds the first"),
    ],
)
def test_a_pattern_that_fits_nothing_guards_nothing_and_is_refused(pattern: str, hint: str) -> None:
    hint = ".*".join(re.escape(part) for part in hint.split(".*"))
    with pytest.raises(UsageError, match=f"--only {re.escape(repr(pattern))} fits nothing in these files: {hint}"):
        check_patterns(BEFORE, AFTER, ["*hops", pattern])
    check_patterns(BEFORE, AFTER, ["*hops", "result.ids.2", "measured.*"])
    check_patterns(BEFORE, AFTER, ["host.*"], ("kinds",))


def test_two_reports_of_runs_on_the_command_line(run_meshrt: Run, tmp_path: Path) -> None:
    a, b = (str(tmp_path / name) for name in ("a.json", "b.json"))
    first, second = (meshrt.run("shift", mesh=(n, 1), tile=2) for n in (3, 4))
    first.write(a)
    second.write(b)
    code, out, err, _ = run_meshrt("diff", a, a, "--fail-above", "0%")
    assert (code, out, err) == (0, "nothing changed\n", "")
    code, out, err, _ = run_meshrt("diff", a, b, "--fail-above", "5")
    assert (code, out) == (2, "") and "--fail-above '5' is 500%: write that, or 5%" in err
    assert (
        run_meshrt("diff", a, b, "--fail-above", "500%").code == run_meshrt("diff", a, a, "--fail-above", "1").code == 0
    )
    code, out, err, _ = run_meshrt("diff", a, b, "--only", "hops", "--fail-above", "0%")
    assert (code, out) == (2, "") and "--only 'hops' fits nothing in these files" in err
    code, out, err, _ = run_meshrt("diff", a, b, "--json", "-")
    rows = {row["path"]: row for part in json.loads(out).values() for row in part}
    hops = rows["measured.hops"]
    assert (code, hops["before"], hops["after"]) == (0, first["hops"], second["hops"])
    assert hops["change"] == pytest.approx(second["hops"] / first["hops"] - 1)
    code, out, err, _ = run_meshrt("diff", a, b, "--only", "measured.hops", "--fail-above", "1%", "--format", "csv")
    assert code == 3
    assert next(csv.DictReader(io.StringIO(out)))[""] == "measured.hops"
    assert f"measured.hops was {first['hops']} and is {second['hops']}" in err


def test_bounds_name_numbers_by_their_path_or_its_end() -> None:
    report = {
        "measured": {"hops": 7, "critical_path": {"hops": 3, "cycles": 40.0}, "a": {"max": 1}, "b": {"max": 2}},
        "phases": [{"name": "decode", "hops": 5}, {"name": "first token (a/b)", "hops": 6}],
        "result": {"max_abs_error": 0.25, "text": "a"},
    }

    def lines(text: str) -> list[str]:
        return bounds.broken(bounds.parse([text]), report)

    assert lines("hops<=7, cycles<41,critical_path.hops==3,decode.hops>4,a.max>=1,max_abs_error<1e0") == []
    assert lines("hops=6,hops==6") == ["hops is 7, expected at most 6", "hops is 7, expected just 6"]
    assert lines("hops=8") == [] and lines("first token (a/b).hops==6") == []
    assert lines("hops==8,decode.hops<5") == ["hops is 7, expected just 8", "decode.hops is 5, expected less than 5"]
    messages = {
        "max=1": "may be a.max or b.max",
        "text=1": "no number 'text'; there are hops, .*, max_abs_error, and those of a phase as PHASE.hops$",
        "hop=1": "no number 'hop'; did you mean hops",
        "decode.hop=1": "did you mean decode.hops",
    }
    for wrong, words in messages.items():
        with pytest.raises(UsageError, match=words):
            lines(wrong)
    for wrong in ("hops", "hops=many", "hops~1", "=1", "hops<nan", "hops===7", "hops!=7"):
        with pytest.raises(UsageError, match="--expect"):
            bounds.parse([wrong])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_keeps_its_bounds_or_ends_with_code_3(ranks: int, run_meshrt: Run) -> None:
    hops = meshrt.run("shift", mesh=(4, 2))["hops"]
    argv = ("run", "shift", "--mesh", "4x2", "--quiet", "--expect")
    assert run_meshrt(*argv, f"hops=={hops},stages=0", ranks=ranks).code == 0
    code, out, err, _ = run_meshrt(*argv, f"hops<{hops}", ranks=ranks)
    assert (code, out) == (3, "")
    assert f"hops is {hops}, expected less than {hops}" in err
    assert err.count("meshrt:") == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_sweep_has_a_row_for_every_combination(ranks: int, run_meshrt: Run) -> None:
    argv = ("sweep", "shift", "--set", "steps=1,3", "--mesh", "2x2,5x3", "--set", "tile=4,4000", "--format", "json")
    code, out, _, _ = run_meshrt(*argv, "--show", "hops,cycles", ranks=ranks)
    rows = json.loads(out)
    assert (code, len(rows)) == (0, 8)
    assert [(row["steps"], row["tile"], row["mesh"]) for row in rows[:3]] == [
        (1, 4, "2x2"),
        (1, 4, "5x3"),
        (1, 4000, "2x2"),
    ]
    for row in rows:
        if row["tile"] == 4000:
            assert row["hops"] is None
            assert "the limit is 49152" in row["refused"]
        else:
            width, height = map(int, row["mesh"].split("x"))
            alone = meshrt.run("shift", mesh=(width, height), steps=row["steps"], tile=4, payload=False)
            assert (row["hops"], row["cycles"]) == (alone["hops"], alone["critical_path.cycles"])


def test_values_of_a_sweep_are_those_of_the_options() -> None:
    chosen = combinations.axes("llama-tiny", None, ["prompt-ids=1,2;3", "max_new_tokens=10", "kv=shift,concat"])
    assert chosen == {"prompt_ids": ["1,2", "3"], "max_new_tokens": [10], "kv": ["shift", "concat"]}
    assert combinations.axes("llama", "gpu", ["tp=1,2"]) == {"tp": [1, 2]}
    chosen = combinations.axes("llama", "gpu", ["size=1,2", "memory=9"])  # words of all machines, as `meshrt run` has
    refused = combinations.run("llama-tiny", "gpu", chosen, False, None)
    assert [report.data["settings"]["tp"] for report in refused] == [1, 2]
    wrong = {"m": "give an option", "q=1": "no option 'q'", "m=x": "m=x is not int", "m=0": "--m is 0", "m=": "give an"}
    for text, words in wrong.items():
        with pytest.raises(UsageError, match=words):
            combinations.axes("gemm", None, [text])
    with pytest.raises(UsageError, match="twice"):
        combinations.axes("gemm", None, ["m=1", "m=2"])
    with pytest.raises(UsageError, match="10000 runs: at most 1000"):
        combinations.axes(
            "gemm", None, [f"m={','.join(map(str, range(1, 101)))}", f"k={','.join(map(str, range(1, 101)))}"]
        )


def test_the_picture_of_a_sweep(tmp_path: Path) -> None:
    chosen = combinations.axes("shift", None, ["steps=1,2", "mesh=2x2,3x3"])
    combinations.check_picture(str(tmp_path / "a.svg"), chosen)
    combinations.draw(str(tmp_path / "a.svg"), ["steps", "mesh", "hops"], [[1, "2x2", 4], [1, "3x3", None]], 2)
    assert "<svg" in (tmp_path / "a.svg").read_text()
    rows = [["a", 1, None], ["a", 2, 20], ["a", 3, 30], ["b", 1, 11], ["b", 2, 21], ["b", 3, None]]
    (panel,) = combinations.figure_of(["name", "m", "hops"], rows, 2).axes
    assert [label.get_text() for label in panel.get_xticklabels()] == ["1", "2", "3"]
    assert [list(line.get_xdata()) for line in panel.lines] == [[1, 2], [0, 1]], "where its value stands"
    with pytest.raises(UsageError, match=r"\.png, \.svg or \.pdf"):
        combinations.check_picture("a.jpgg", chosen)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("rum",), "did you mean run?"),
        (("run", "gem"), "did you mean gemv or gemm?"),
        (("run", "llama-tinny"), "did you mean llama-tiny"),
        (("run", "--mesh", "4x4", "gemm"), "meshrt run PROGRAM --mesh ..."),
        (("diff", "/nonexistent", "b"), "/nonexistent cannot be read: No such file"),
        (("diff", __file__, __file__), "is no JSON"),
    ],
)
def test_what_is_mistyped(argv: tuple[str, ...], words: str, run_meshrt: Run) -> None:
    code, _, err, _ = run_meshrt(*argv)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
