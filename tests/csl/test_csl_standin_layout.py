"""A layout that the host script makes: regions of code, parameters, painted routes, variables read by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshrt.csl.host.child import run

CORE = """
param count: u16;
param last: u16;
param line: color;
const out_q = @get_output_queue(2); const in_q = @get_input_queue(3); const start = @get_local_task_id(9);
export var held: [3]f32;
const held_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> held[i] });
const to = @get_dsd(fabout_dsd, .{ .fabric_color = line, .extent = 3, .output_queue = out_q });
const from = @get_dsd(fabin_dsd, .{ .fabric_color = line, .extent = 3, .input_queue = in_q });
task go() void {
  if (last == 0) {
    for (@range(i16, 3)) |i| { held[i] = @as(f32, i) + @as(f32, count); }
    @fmovs(to, held_dsd);
  } else { @fmovs(held_dsd, from); }
}
comptime {
  @bind_local_task(go, start); @activate(start);
  @initialize_queue(in_q, .{ .color = line }); @initialize_queue(out_q, .{ .color = line });
}
"""
SCRIPT = """
import numpy as np
from cerebras.geometry.geometry import IntVector
from cerebras.sdk.runtime.sdkruntimepybind import (
    Color, Route, RoutingPosition, SdkLayout, SdkRuntime, SdkTarget, SimfabConfig, get_platform,
)
platform = get_platform(None, SimfabConfig(dump_core=True), SdkTarget.WSE3)
layout = SdkLayout(platform)
code = layout.create_code_region("./core.csl", "row", 2, 1)
code.place(3, 1)
code.set_param_all("count", 40)
line = Color("line")
for x in range(2):
    code.set_param(IntVector(x, 0), "last", x)
code.set_param_all(line)
code.paint(IntVector(0, 0), line, [RoutingPosition().set_input([Route.RAMP]).set_output([Route.EAST])])
code.paint(IntVector(1, 0), line, [RoutingPosition().set_input([Route.WEST]).set_output([Route.RAMP])])
EXTRA
runtime = SdkRuntime(layout.compile(out_prefix="out"), platform, memcpy_required=False)
runtime.load(); runtime.run(); runtime.stop()
print(runtime.read_symbol(4, 1, "held", dtype="float32").tolist())
"""


@pytest.mark.parametrize(
    ("extra", "out", "message"),
    [
        ("", "[40.0, 41.0, 42.0]\n", ""),
        ("layout.create_code_region('./core.csl', 'other', 9, 9)", "",
         "error: other: core (3, 1) has the code of another region"),
        ("code.set_param(IntVector(2, 0), 'last', 0)", "", "error: row: core (2, 0) is not in its 2 x 1"),
        ("code.create_output_port(line)", "", "error: a region has no create_output_port here"),
    ],
)  # fmt: skip
def test_a_layout_of_the_script(tmp_path: Path, extra: str, out: str, message: str) -> None:
    (tmp_path / "core.csl").write_text(CORE)
    (tmp_path / "run.py").write_text(SCRIPT.replace("EXTRA", extra))
    ran = run(["cs_python", "run.py"], tmp_path, capture=True)
    assert ran.stdout == out
    assert message in ran.stderr and (ran.returncode == 0) == bool(out)
