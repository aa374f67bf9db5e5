"""A model of the host's time: its prices, what it counts, and what it makes of more nodes. How fast is no test."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshrt.launch.bench import Timing
from meshrt.studies.bench import hostmodel
from meshrt.studies.bench.hostmodel import (
    FITTED,
    HEADER,
    HELD,
    TERMS,
    GemmSize,
    Network,
    TimedRun,
    fit,
    projected,
    told,
)

PRICES = {
    "job": 0.3, "rank": 0.2, "core": 2e-6, "tick of a rank": 3e-5, "message": 2e-5, "byte of a message": 1e-9,
    "packet": 4e-8, "byte of a tile": 5e-10, "MAC": 2e-9,
}  # fmt: skip


def counted(size: GemmSize) -> TimedRun:
    """What a run of that size counts: two tiles a core and step, over every cut of lines between blocks both ways."""
    columns = {1: 1, 2: 1, 4: 2, 8: 2}[size.ranks]
    rows = size.ranks // columns
    cuts = (columns - 1) * size.side + (rows - 1) * size.side  # lines that are cut, of both axes
    messages = 2 * size.steps * ((columns - 1) * rows + (rows - 1) * columns)
    packets = 2 * size.side**2 * size.steps
    moved = 2 * size.steps * cuts * (size.tile_bytes + HEADER)
    ramps = packets * 2 * size.tile_bytes
    return TimedRun(size, 0.0, messages, moved, packets, ramps, size.side**2 * size.steps * size.tile**3)


def test_prices_are_found_again_and_none_is_negative() -> None:
    runs = [replace(run, cpu_seconds=told(PRICES, run)) for run in map(counted, FITTED)]
    assert fit(runs) == pytest.approx(PRICES, rel=1e-6)
    cheaper = [replace(run, cpu_seconds=told(PRICES | {"packet": -1e-8}, run)) for run in runs]
    prices = fit(cheaper)
    assert prices.keys() == TERMS.keys() and min(prices.values()) == 0


def test_no_size_that_is_held_back_was_fitted() -> None:
    assert not {*FITTED} & {*HELD}
    assert not {size.side for size in FITTED} & {size.side for size in HELD}


@pytest.mark.parametrize(
    "size", [GemmSize(8, 3, 5, 2), pytest.param(GemmSize(8, 3, 5, 4), marks=pytest.mark.all)], ids=str
)
def test_what_is_measured_is_what_the_closed_forms_say(
    size: GemmSize, run_meshrt: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def timed(ranks: int, arguments: tuple[str, ...]) -> Timing:
        path = tmp_path / "report.json"
        code, out, err, seconds = run_meshrt(*arguments, "--quiet", "--json", str(path), ranks=ranks)
        assert (code, out, err) == (0, "", "")
        return Timing(seconds, 2 * seconds, json.loads(path.read_text()))

    model = hostmodel.measure(timed, [size], [size])
    (run,) = model.fitted
    assert run.cpu_seconds > 0 and replace(run, cpu_seconds=0.0) == counted(size)
    assert told(model.prices, run) == pytest.approx(run.cpu_seconds)
    document = hostmodel.as_json(model, Network())
    assert [entry["held_back"] for entry in document["runs"]] == [False, True]
    hostmodel.print_model(model, Network())
    out = capsys.readouterr().out
    assert "64 processors a node, 2 us a message, 12.5 GB/s a node (assumed)" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("job", "MAC", "8 x 8"))] == [
        "job",
        "MAC",
        "8",
    ]


@pytest.mark.parametrize("size", [*hostmodel.WORKS.values()], ids=str)
def test_more_nodes_bring_what_the_prices_say(size: GemmSize) -> None:
    single = projected(PRICES, size, 1, Network(processors=1))
    assert single.seconds == single.alone == pytest.approx(told(PRICES, counted(replace(size, ranks=1))))
    assert single.share == 0
    four = projected(PRICES, size, 1, Network(processors=4))
    block = counted(replace(size, side=size.side // 2, ranks=1))
    sends = (
        4 * size.steps * (PRICES["message"] + size.side / 2 * (size.tile_bytes + HEADER) * PRICES["byte of a message"])
    )
    assert four.seconds == pytest.approx(told(PRICES, block) + sends)
    assert four.share == pytest.approx(sends / four.seconds)
    near, far = (projected(PRICES, size, 4, Network(latency=latency)) for latency in (0.0, 1e-3))
    assert far.seconds - near.seconds == pytest.approx(4 * size.steps * 1e-3)
    slow = projected(PRICES, size, 4, Network(bandwidth=1e6))
    assert slow.seconds > near.seconds and projected(PRICES, size, 10**6, Network()).ranks == min(
        64 * 10**6, size.side**2
    )
