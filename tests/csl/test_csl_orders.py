"""The order of ready tasks is arbitrary: whether it changes what a program comes to is tried, and said."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from meshrt.commands.csl import command
from tests.csl_programs import write

EXAMPLES = Path(__file__).parents[2] / "examples/csl"
# two tasks that are ready when main ends: they add, or one of them doubles
RACE = """
var out: [2]u16; var out_ptr: [*]u16 = &out; var same: [2]u16; var same_ptr: [*]u16 = &same; var left: u16 = 2;
const one_id = @get_local_task_id(9); const two_id = @get_local_task_id(10);
fn end() void { left -= 1; same[0] += 5; if (left == 0) { sys.unblock_cmd_stream(); } }
task one() void { out[0] += 3; end(); }
task two() void { out[0] = TWO; end(); }
fn main() void { @activate(one_id); @activate(two_id); }
comptime { @bind_local_task(one, one_id); @bind_local_task(two, two_id);
  @export_symbol(out_ptr, "out"); @export_symbol(same_ptr, "same"); @export_symbol(main); }
"""


def ran(*words: str) -> tuple[Result, Any]:
    result = CliRunner().invoke(command, ["run", *words])
    return result, result.exception


def orders(path: Path, *words: str) -> Any:
    result, error = ran(str(path), "--params", "width:1", "--launch", "main", "--json", "-", *words)
    assert error is None, error
    return json.loads(result.stdout)


def test_what_a_race_changes_is_named(tmp_path: Path) -> None:
    """3 x 2 and then 0 + 3, or 0 x 2 and then 3: `out` differs where `two` goes first, `same` never does."""
    layout = write(tmp_path, RACE.replace("TWO", "out[0] * 2"))
    report = orders(layout, "--seeds", "12", "--show", "out")
    assert report["shown"]["out"] == {"0,0": [6, 0]}
    changed = report["orders"]["changed"]
    assert 0 < len(changed) < 12
    assert all(order["names"] == ["out"] and order["error"] is None for order in changed)
    for seed in range(1, 13):  # each can be had by itself
        expected = [3, 0] if seed in [order["seed"] for order in changed] else [6, 0]
        assert orders(layout, "--seed", str(seed), "--show", "out")["shown"]["out"] == {"0,0": expected}
    said = ran(str(layout), "--params", "width:1", "--launch", "main", "--seeds", "12")[0].stdout
    assert f"{len(changed)} of 12 other orders of ready tasks change the result" in said
    assert f"  --seed {changed[0]['seed']}: out" in said


def test_where_the_order_is_the_same_to_the_result_that_is_said(tmp_path: Path) -> None:
    layout = write(tmp_path, RACE.replace("TWO", "out[0] + 2"))
    compared = orders(layout, "--seeds", "6")["orders"]
    assert (compared["seeds"], compared["programs"], compared["changed"]) == (6, 1, [])
    assert compared["cycles"]["min"] <= compared["cycles"]["max"]
    said = ran(str(layout), "--params", "width:1", "--launch", "main", "--seeds", "6")[0].stdout
    assert "6 other orders of ready tasks: nothing that is exported differs" in said


def test_an_order_that_ends_otherwise_is_told(tmp_path: Path) -> None:
    """`two` does its part only where `one` has gone before; else the host waits for ever."""
    body = RACE.replace("out[0] = TWO; end();", "if (out[0] == 3) { end(); }")
    changed = orders(write(tmp_path, body), "--seeds", "12")["orders"]["changed"]
    assert 0 < len(changed) < 12
    assert all("deadlock: 1 of 1 cores" in order["error"] for order in changed)


def test_a_script_is_run_again(tmp_path: Path) -> None:
    """A folder's own script, of which what the program exports is compared; what it prints is printed once."""
    for path in (EXAMPLES / "gemv").iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    report = tmp_path / "report.json"
    result, error = ran(str(tmp_path), "--seeds", "1", "--json", str(report), "--", "bash", "run.sh", "3", "2", "2")
    assert error is None, error
    assert "1 other order of ready tasks: nothing that is exported differs" in result.stdout
    document = json.loads(report.read_text())
    assert document["orders"]["programs"] == len(document["runs"]) == 1
    assert "exported" not in document["runs"][0]


@pytest.mark.all
def test_what_differs_in_any_run_is_no_race(tmp_path: Path) -> None:
    """What a script draws from NumPy's one row of numbers is the same in all runs; other draws are not compared."""
    body = (
        RACE.replace("TWO", "out[0] * 2")
        + """var drawn: [2]u16; var drawn_ptr: [*]u16 = &drawn;
    comptime { @export_symbol(drawn_ptr, "drawn"); }"""
    )
    write(tmp_path, body)
    (tmp_path / "run.py").write_text("""import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, MemcpyOrder, SdkRuntime
runner = SdkRuntime("out")
runner.load()
runner.run()
how = dict(streaming=False, order=MemcpyOrder.ROW_MAJOR, data_type=MemcpyDataType.MEMCPY_16BIT, nonblock=False)
for name, numbers in ("drawn", np.random.rand(2)), ("same", np.random.default_rng().random(2)):
    runner.memcpy_h2d(runner.get_id(name), (60000 * numbers).astype(np.uint32), 0, 0, 1, 1, 2, **how)
runner.launch("main", nonblock=False)
runner.stop()
""")
    (tmp_path / "run.sh").write_text("cslc --arch=wse3 layout.csl --params=width:1 -o out\ncs_python run.py\n")
    result, error = ran(str(tmp_path), "--seeds", "6", "--json", "-", "--", "bash", "run.sh")
    assert error is None, error
    said = json.loads(result.stdout)["orders"]
    assert said["varies"] == ["same"]
    assert 0 < len(said["changed"]) < 6
    assert all(order["names"] == ["out"] for order in said["changed"])


@pytest.mark.parametrize(
    ("words", "message"), [(("--seeds", "2", "--seed", "1"), "one of the two"), (("--seeds", "0"), "x>=1")]
)
def test_one_message(words: tuple[str, ...], message: str) -> None:
    result, error = ran(str(EXAMPLES / "shift/layout.csl"), "--params", "n:3,width:2", *words)
    assert error is not None
    assert message in f"{error}{result.stderr}"
