"""What a program's end has waited for: messages one after the other, their hops, and cycles with nothing to do."""

from pathlib import Path
from typing import Any

import pytest

from meshrt.csl.host.direct import run as run_layout
from tests.csl.test_csl_refusals import SEND
from tests.csl_programs import write

GEMV = Path(__file__).parents[2] / "examples/csl/gemv/layout.csl"
END = "comptime { @export_symbol(main); }\n"
BOTH = pytest.mark.parametrize("core", ["", "numpy"])


def report(layout: Path, parameters: str, launch: str = "main") -> dict[str, Any]:
    return run_layout(layout, parameters, "wse3", (launch,), (), None)[0]


@BOTH
@pytest.mark.parametrize("height", [1, 2, 9])
def test_sums_go_down_a_column(height: int, core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each core adds what comes from above and sends it on: height - 1 messages of a hop, one after the other."""
    monkeypatch.setenv("MESHRT_CORE", core)
    counted = report(GEMV, f"m:5,k:3,height:{height}", "compute")
    assert counted["critical_path"] == {"hops": height - 1, "stages": height - 1, "cycles": counted["cycles"]["max"]}
    assert counted["cores_used"] == height


@BOTH
def test_one_message_goes_over_many_routers(core: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From core 0 to the last, by routers between: one message of 5 hops. Those between compute nothing."""
    monkeypatch.setenv("MESHRT_CORE", core)
    body = SEND.replace("} else {", "} else if (column == width - 1) {")
    routes = """@set_color_config(x, 0, @get_color(5), .{ .routes = .{
        .rx = if (x == 0) .{RAMP} else .{WEST}, .tx = if (x == width - 1) .{RAMP} else .{EAST} } });"""
    counted = report(write(tmp_path, body + END, routes), "width:6")
    assert {**counted["critical_path"], "cycles": None} == {"hops": 5, "stages": 1, "cycles": None}
    assert (counted["max_hops"], counted["cores_used"]) == (5, 2)


@BOTH
def test_waiting_is_what_the_sender_takes_longer(core: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the loop is an addition, a compare and a branch: the other core has that more of nothing to do."""
    monkeypatch.setenv("MESHRT_CORE", core)
    routes = """@set_color_config(x, 0, @get_color(5), .{ .routes = .{
        .rx = if (x == 0) .{RAMP} else .{WEST}, .tx = if (x == 0) .{EAST} else .{RAMP} } });"""
    reports = []
    for turns in (200, 300):
        body = SEND.replace("{ @fmovs(to", f"{{ for (@range(i16, {turns})) |i| {{ a[0] += 1.0; }} @fmovs(to")
        reports.append(report(write(tmp_path, body + END, routes), "width:2"))
    longer = reports[1]["cycles"]["max"] - reports[0]["cycles"]["max"]
    assert longer >= 100
    assert 2 * (reports[1]["cycles"]["waiting"] - reports[0]["cycles"]["waiting"]) == pytest.approx(longer)
    assert 2 * (reports[1]["cycles"]["mean"] - reports[0]["cycles"]["mean"]) == pytest.approx(2 * longer)


@BOTH
def test_a_task_that_was_blocked_comes_from_what_unblocks_it(
    core: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is active from the beginning, and runs when the wavelets are there."""
    monkeypatch.setenv("MESHRT_CORE", core)
    body = SEND.replace(
        "@fmovs(a_dsd, from);", "@activate(later); @fmovs(a_dsd, from, .{ .async = true, .unblock = later });"
    )
    body = body.replace("  sys.unblock_cmd_stream();\n", "  if (column == 0) { sys.unblock_cmd_stream(); }\n")
    body += """const later = @get_local_task_id(9); task after() void { sys.unblock_cmd_stream(); }
    comptime { @block(later); @bind_local_task(after, later); }\n"""
    routes = """@set_color_config(x, 0, @get_color(5), .{ .routes = .{
        .rx = if (x == 0) .{RAMP} else .{WEST}, .tx = if (x == 0) .{EAST} else .{RAMP} } });"""
    counted = report(write(tmp_path, body + END, routes), "width:2")
    assert (counted["critical_path"]["hops"], counted["critical_path"]["stages"]) == (1, 1)


@BOTH
@pytest.mark.parametrize(
    ("by", "cycles"), [("* 3.0", 1), ("/ 3.0", 60), ("/ 256.0", 1), ("/ -0.25", 1), ("/ 0.0", 60), ("/ a[1]", 60)]
)
def test_a_division_is_a_routine(
    by: str, cycles: int, core: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But by a power of two, which is a product."""
    monkeypatch.setenv("MESHRT_CORE", core)
    body = "var a: [2]f16 = @constants([2]f16, 3.0); fn main() void {{ a[0] = a[0] {}; sys.unblock_cmd_stream(); }}"
    took = [
        report(write(tmp_path, body.format(division) + END), "width:1")["cycles"]["max"]
        for division in (by, by.replace("/", "+"))
    ]
    assert took[0] - took[1] == cycles - 1
