"""Programs in CSL for tests: one core, or a row of cores, around a body that a test writes."""

from pathlib import Path

from meshrt.csl.host.direct import look
from meshrt.csl.language.program import build
from meshrt.csl.machine.wafer import Wafer

LAYOUT = """
param width: i16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = width, .height = 1 });
layout {
  @set_rectangle(width, 1);
  for (@range(i16, width)) |x| {
    @set_tile_code(x, 0, "core.csl", .{ .memcpy_params = memcpy.get_params(x), .column = x, .width = width });
    ROUTES
  }
}
"""
CORE = """
param memcpy_params: comptime_struct;
param column: i16;
param width: i16;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
"""


def write(folder: Path, body: str, routes: str = "") -> Path:
    (folder / "core.csl").write_text(CORE + body)
    (folder / "layout.csl").write_text(LAYOUT.replace("ROUTES", routes))
    return folder / "layout.csl"


def run(folder: Path, body: str, show: str = "out", width: int = 1, routes: str = "", seed: int | None = None,
        arch: str = "wse3") -> tuple[list[list[float]], Wafer]:  # fmt: skip
    """Launch main; what each core then has by that name, and the wafer."""
    wafer = Wafer(build(write(folder, body, routes), {"width": width}, arch), seed)
    wafer.launch("main", ())
    wafer.idle()
    return [*look(wafer, show).values()], wafer
