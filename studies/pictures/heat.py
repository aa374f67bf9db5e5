"""Pictures of a number for each core: in a terminal, as text and colours, and as a file, by matplotlib."""

import io
from math import ceil
from pathlib import Path

import numpy as np

from meshrt.errors import UsageError
from meshrt.ranks.files import check_target, write_file
from meshrt.studies.files import check_matplotlib
from meshrt.studies.grid import shown
from meshrt.studies.pictures.maps import Picture

# From little to much, dark blue to yellow: told apart also by who sees no red or no green, and in grey.
COLOURS = ("#0d0887", "#41049d", "#6a00a8", "#8f0da4", "#b12a90", "#cc4778", "#e16462", "#f2844b", "#fca636", "#fcce25")
FORMATS = (".png", ".svg", ".pdf")


def pooled(values: np.ndarray, side: int) -> np.ndarray:
    """The largest of each square of side x side cores; of fewer at the ends."""
    height, width = (ceil(length / side) for length in values.shape)
    padded = np.full((height * side, width * side), -np.inf)
    padded[: values.shape[0], : values.shape[1]] = values
    return np.asarray(padded.reshape(height, side, width, side).max(axis=(1, 3)))


def levels(values: np.ndarray) -> np.ndarray:
    """Tenths of the largest number, int 0 to 9; -1 where it is zero."""
    most = values.max(initial=0)
    tenths = np.minimum(9, (10 * values / most).astype(int)) if most > 0 else np.zeros(values.shape, int)
    return np.where(values > 0, tenths, -1)


def in_words(picture: Picture) -> str:
    """Most, least and mean; of pairs most, and all."""
    values = picture.values
    if picture.each is not None:
        most = f"most {shown(values.max().item())} from {picture.at(int(np.argmax(values)))}, " if values.any() else ""
        return f"{most}{shown(int(np.count_nonzero(values)))} pairs, {shown(values.sum().item())} {picture.unit} in all"
    most, least = (picture.at(int(of(values))) for of in (np.argmax, np.argmin))
    limit = "" if picture.limit is None else f" of {shown(picture.limit)}"
    words = (
        f"most {shown(values.max().item())}{limit} at {most}, least {shown(values.min().item())} at {least},"
        f" mean {shown(float(values.mean()))} {picture.unit}"
    )
    return words.rstrip()


def print_heat(picture: Picture) -> None:
    """Two columns of the terminal a core, or a square of cores where it is too narrow: colours, or tenths of the
    most. Colours need a terminal of 256 of them at least.
    """
    from rich.console import Console
    from rich.text import Text

    screen = Console(highlight=False, soft_wrap=False)
    height, width = picture.values.shape
    label = len(str(max(height, width) - 1)) + 1
    side = max(1, ceil(2 * width / max(2, screen.width - label)))
    cells = pooled(picture.values, side)
    coloured = screen.is_terminal and screen.color_system in ("256", "truecolor") and not screen.no_color
    screen.print(picture.title)
    header = Text(" " * label)
    step = max(1, ceil((label + 1) / 2))
    for column in range(0, cells.shape[1], step):
        header.append(str(column * side).ljust(2 * step)[: 2 * step])
    header.truncate(screen.width)
    screen.print(header)
    for row, line in enumerate(levels(cells)):
        text = Text(str(row * side).rjust(label - 1) + " ")
        for level in line:
            if coloured:
                text.append("  ", style="" if level < 0 else f"on {COLOURS[level]}")
            else:
                text.append(". " if level < 0 else f"{level} ")
        screen.print(text)
    legend = Text("0 ")
    for level, colour in enumerate(COLOURS):
        legend.append("  " if coloured else str(level), style=f"on {colour}" if coloured else "")
    legend.append(f" {shown(picture.values.max().item())} {picture.unit}".rstrip())
    screen.print(legend)
    if side > 1:
        of = "cores" if picture.each is None else "senders and receivers"
        screen.print(f"a cell is {side} x {side} {of}: the largest of them")
    screen.print(in_words(picture))


def check_file(option: str, path: str) -> None:
    """UsageError, before any work, where a picture cannot be written there."""
    if Path(path).suffix not in FORMATS:
        raise UsageError(f"{option} {path}: the name ends with {', '.join(FORMATS)}")
    check_matplotlib(option)
    check_target(option, path)


def draw_heat(option: str, path: str, picture: Picture) -> None:
    """The picture as a file; the same numbers give the same file."""
    from matplotlib import rc_context
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    height, width = picture.values.shape
    longest = max(height, width)
    with rc_context({"svg.hashsalt": "meshrt", "svg.fonttype": "none"}):
        figure = Figure(
            figsize=(max(4.5, 6 * width / longest + 1.2), max(2.4, 6 * height / longest + 0.8)), layout="constrained"
        )
        panel = figure.subplots()
        heat = panel.imshow(
            picture.values, cmap=LinearSegmentedColormap.from_list("meshrt", COLOURS), vmin=0, interpolation="nearest"
        )
        figure.colorbar(heat, label=picture.unit)
        panel.set_title(picture.title, fontsize="small", wrap=True)
        panel.set_xlabel(in_words(picture), fontsize="small", wrap=True)
        if picture.each is not None:
            panel.set_ylabel("sender")
        panel.set_xticks(np.unique(np.linspace(0, width - 1, min(width, 9)).astype(int)))
        panel.set_yticks(np.unique(np.linspace(0, height - 1, min(height, 9)).astype(int)))
        image, form = io.BytesIO(), Path(path).suffix.removeprefix(".")
        dated = {"svg": "Date", "pdf": "CreationDate"}
        figure.savefig(image, format=form, dpi=120, metadata={dated[form]: None} if form in dated else None)
    write_file(option, path, lambda stream: stream.write(image.getvalue()))
