"""A picture of what was measured and emulated."""

import io
from collections.abc import Sequence
from pathlib import Path

from meshrt.ranks.files import write_file
from meshrt.studies.validate.errors import Compared


def draw(path: str, compared: Sequence[Compared]) -> None:
    """A column of two panels a kernel: emulated over measured, and their ratio; rows of each use in a colour.

    No display is needed, and none of matplotlib's own settings are changed.
    """
    from matplotlib.figure import Figure

    kernels = list(dict.fromkeys(pair.kernel for pair in compared))
    figure = Figure(figsize=(4.5 * len(kernels), 6.5), layout="constrained")
    panels = figure.subplots(2, len(kernels), squeeze=False)
    for (both, ratios), kernel in zip(panels.T, kernels, strict=True):
        own = [pair for pair in compared if pair.kernel == kernel and pair.ratio is not None]
        for use in dict.fromkeys(pair.row.use for pair in own):
            part = [pair for pair in own if pair.row.use == use]
            measured = [pair.row.measured for pair in part]
            both.plot(measured, [pair.emulated.value for pair in part], ".", markersize=4, label=use)
            ratios.plot(measured, [pair.ratio for pair in part], ".", markersize=4)
        unit = own[0].row.kind.unit if own else ""
        ends = [
            min((pair.row.measured for pair in own), default=1),
            max((pair.row.measured for pair in own), default=1),
        ]
        both.plot(ends, ends, color="grey", linewidth=0.8)
        ratios.axhline(1, color="grey", linewidth=0.8)
        for panel in (both, ratios):
            panel.set_xscale("log")
            panel.set_xlabel(f"measured, {unit}")
        both.set_yscale("log")
        both.set_title(kernel)
        both.set_ylabel(f"emulated, {unit}")
        ratios.set_ylabel("emulated / measured")
        if own:
            both.legend()
    image = io.BytesIO()
    figure.savefig(image, format=Path(path).suffix.removeprefix("."), dpi=120)
    write_file("--png", path, lambda stream: stream.write(image.getvalue()))
