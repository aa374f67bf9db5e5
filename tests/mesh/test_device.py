"""Devices: what an operation takes on one, and files of a user's own, checked key by key."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measure import measured, run_report
from runs import new_block

from meshrt.errors import UsageError
from meshrt.mesh.clock import TIME
from meshrt.mesh.device import ENERGY, POSITIVE, Device
from meshrt.mesh.devicefile import as_toml, find_device, read_device
from meshrt.mesh.presets import DOJO, PRESETS, WORMHOLE, WSE2, WSE3

# --------------------------------------------------------------------------------------------------------- operations


def test_vectors_that_begin_anywhere_touch_a_part_of_a_chunk_more() -> None:
    """Of all places where n numbers can begin in a chunk of w, the mean of the chunks that they touch."""
    for width, length in ((8, 1), (8, 3), (8, 8), (8, 9), (4, 16), (1, 5)):
        touched = [(begin + length - 1) // width + 1 for begin in range(width)]
        device = Device(name="test", macs_per_cycle=float(width), chunk_cycles=1.5, call_cycles=2.0)
        assert device.vector_cycles(length, 10) == pytest.approx(10 * (2 + 1.5 * sum(touched) / width))
        assert device.compute_cycles(length) == pytest.approx(2 + 1.5 * sum(touched) / width)
    assert Device(name="test", macs_per_cycle=0.5, chunk_cycles=1.0).vector_cycles(6, 1) == 12


def test_vectors_that_lie_in_step_take_whole_widths() -> None:
    for length, cycles in ((1, 1), (31, 1), (32, 1), (33, 2), (64, 2)):
        assert WORMHOLE.vector_cycles(length, 10) == 10 * cycles == 10 * WORMHOLE.compute_cycles(length)


def test_four_numbers_of_two_vectors_are_read_at_once_in_one_place_of_eight() -> None:
    """On eight banks of 16-bit words, each of which gives one in a cycle: the second cycle is for banks asked twice."""
    taken = [1 + bool({k % 8 for k in range(4)} & {(offset + k) % 8 for k in range(4)}) for offset in range(8)]
    assert taken == [2, 2, 2, 2, 1, 2, 2, 2]  # free where src0 % 8 == (src1 + 4) % 8
    assert sum(taken) / 8 == WSE2.chunk_cycles_16
    plain = replace(WSE2, chunk_cycles=1.0, chunk_cycles_16=None)
    for length in (1, 9, 12):
        assert WSE2.compute_cycles(length, 2) - 1 == 1.875 * (plain.compute_cycles(length, 2) - 1)
        assert WSE2.compute_cycles(length, 2, operands=1) == plain.compute_cycles(length, 2)
        assert WSE2.vector_cycles(length, 1, 2) == WSE2.compute_cycles(length, 2)
        assert WSE2.compute_cycles(length, 4) == replace(WSE2, chunk_cycles_16=None).compute_cycles(length, 4)


def test_widths_go_by_operation_and_size() -> None:
    device = Device(name="test", macs_per_cycle=1.0, macs_per_cycle_16=8.0, adds_per_cycle=2.0, adds_per_cycle_16=4.0)
    assert [device.vector_cycles(16, 1, size) for size in (4, 2)] == [16, 2]
    assert [device.compute_cycles(16, size) for size in (4, 2)] == [8, 4]
    old = Device(name="test", macs_per_cycle=4.0, macs_per_cycle_16=8.0)
    assert [old.compute_cycles(16, size) for size in (4, 2)] == [4, 4]  # without widths of their own, as float32's


def test_a_product_is_a_loop_of_maps_or_one_map() -> None:
    device = Device(name="test", macs_per_cycle=4.0, call_cycles=1.0, loop_cycles=40.0)
    assert device.matmul_cycles(3, 5, 8, 4) == 5 * (40 + 3 * (1 + 2))
    assert device.matmul_cycles(8, 5, 3, 4) == 5 * (40 + 3 * (1 + 2))
    assert device.matmul_cycles(3, 5, 8, 4, down=True) == 5 * (40 + 8 * (1 + 1))
    assert device.matmul_cycles(1, 5, 8, 4) == 40 + 5 * (1 + 2)
    assert device.matmul_cycles(8, 5, 1, 4, down=True) == 5 * (40 + 1 + 2)


def test_a_matrix_unit_takes_whole_pieces_of_16_bits() -> None:
    assert WORMHOLE.matmul_cycles(32, 32, 32, 2) == 2 * 4 * 2 * 2
    assert WORMHOLE.matmul_cycles(1, 17, 1, 2) == 2 * 2
    assert WORMHOLE.matmul_cycles(32, 1, 3, 4) == 3  # float32: instructions of 32 lanes
    assert DOJO.matmul_cycles(64, 64, 64, 2) * 256 == 64**3


@pytest.mark.mpi(ranks=[1, 4])
def test_elementwise_work_takes_the_width_of_its_numbers(comm: Any) -> None:
    block = new_block(comm, (4, 4), Device(name="test", adds_per_cycle=2.0, adds_per_cycle_16=8.0, call_cycles=1.0))
    block.elementwise(np.zeros((*block.shape, 16), np.float16), 3)
    assert (block.clock.state[TIME] == 3 * (1 + 2)).all()
    block.elementwise(np.zeros((*block.shape, 16), np.float32))
    assert (block.clock.state[TIME] == 9 + 1 + 8).all()
    measured(block)


@pytest.mark.mpi(ranks=[1, 4])
def test_scalar_code_goes_number_by_number(comm: Any) -> None:
    device = Device(name="test", division_cycles=60.0, root_cycles=50.0, exponential_cycles=16.0)
    block = new_block(comm, (4, 4), device)
    block.scalar(divisions=3, roots=1, exponentials=2)
    assert (block.clock.state[TIME] == 3 * 60 + 50 + 2 * 16).all()
    measured(block)


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_edges_of_dies_cost_where_packets_cross_them(comm: Any) -> None:
    """Rows 0 and 1, 2 to 4, 5 to 7 are dies of 2.5 rows: the way down crosses two edges, the way back two."""
    plain = replace(WSE3, die_rows=None)
    for axis, edges in (("y", 4), ("x", 0)):
        cycles = [
            run_report(comm, "gemv", (8, 8), device, payload=False, allreduce="pipeline", axis=axis)["measured"][
                "critical_path"
            ]["cycles"]
            for device in (plain, replace(WSE3, die_rows=2.7, die_cycles=100.0))
        ]
        assert cycles[1] - cycles[0] == edges * 100


# -------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_written_and_read_is_itself(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(as_toml(PRESETS[name]))
    assert read_device(str(path)) == PRESETS[name]
    assert {*tomllib.loads(path.read_text())} == {
        field.name for field in fields(Device) if getattr(PRESETS[name], field.name) is not None
    }


def test_any_name_is_written_so_that_it_is_read(tmp_path: Path) -> None:
    """JSON has a character beyond 16 bits as two halves, which TOML refuses; a comment ends with the line."""
    device = Device(name='\U0001d6fc\n\x7f"ß', sources=("of \U0001d6fc\x7f",))
    (tmp_path / "mine.toml").write_text(as_toml(device), encoding="utf-8")
    assert read_device(str(tmp_path / "mine.toml")) == device


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alpha = 1.0", "it has no name"),
        ('name = "a"\nalhpa = 1.0', "alhpa is no key of a device; there are name, width, height, core_memory"),
        ('name = "a"\nwidth = 7.5', "width is 7.5; it is a whole number"),
        ('name = "a"\nwidth = true', "width is true; it is a whole number"),
        ('name = "a"\nalpha = "fast"', 'alpha is "fast"; it is a number'),
        ('name = "a"\nalpha = inf', "alpha is Infinity; it is a number"),
        ('name = "a"\nstream_adds = 1', "stream_adds is 1; it is true or false"),
        ("name = 3", "name is 3; it is a text"),
        ('name = " "', 'name is empty; write name = "mine"'),
        ('name = "a"\nsources = "me"', "sources is a list of texts"),
        ('name = "a"\nmatrix_unit = [8, 16]', "matrix_unit is .8, 16.; it is three whole numbers of 1 or more"),
        ('name = "a"\nidle_watts = [1]', "idle_watts is .1.; it is the lowest and the highest"),
        ('name = "a"\nidle_watts = 2.5', "idle_watts is 2.5; it is the lowest and the highest"),
        ('name = "a"\nhop_picojoules = [2, 1]', "hop_picojoules is .2.0, 1.0.; it is the lowest and the highest"),
        ('name = "a"\nbeta = -1', "beta is -1.0; it cannot be negative"),
        ('name = "a"\nroute_entries = 257', "route_entries is 257; it is at most 256"),
        ('name = "a"\nlink_bytes_per_cycle = 0', "link_bytes_per_cycle is 0; nothing would ever be done"),
        ('name = "a"\nchunk_cycles_16 = 2', "chunk_cycles_16 is nothing without chunk_cycles: give both, or leave it"),
        ('name = "a"\nadds_per_cycle_16 = 2', "adds_per_cycle_16 is nothing without adds_per_cycle"),
        ('name = "a"\nmatrix_passes = 2', "matrix_passes is nothing without matrix_unit"),
        ('name = "a"\ndie_cycles = 2', "die_cycles is nothing without die_rows"),
        ('name = "a"\ndie_rows = 2', "die_rows is nothing without die_cycles"),
        ('name = "a"\nchunk_cycles = 2', "nothing without macs_per_cycle or macs_per_cycle_16 or adds_per_cycle: give"),
        ('name = "a', "is no TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_device(str(path))


def test_a_limit_or_a_rate_of_nothing_is_refused_and_a_cost_is_none(tmp_path: Path, run_meshrt: Any) -> None:
    """Every number of a device as 0: it is in POSITIVE, or a run goes on with it."""
    path = tmp_path / "zero.toml"
    for key in (*POSITIVE, "matrix_unit"):
        path.write_text(f'name = "zero"\n{key} = 0\n')
        with pytest.raises(UsageError, match=f"{key} is 0; "):
            read_device(str(path))
    costs = {field.name for field in fields(Device)} - {*POSITIVE, *ENERGY, "matrix_unit", "name", "sources"}
    lines = [f"{key} = {'false' if key == 'stream_adds' else 0}" for key in costs]
    path.write_text("\n".join(['name = "zero"', *lines, *(f"{key} = [0, 0]" for key in ENERGY)]))
    sizes = ("--m", "8", "--k", "8", "--n", "8", "--payload", "none")
    done = run_meshrt("run", "gemm", "--device", str(path), "--mesh", "4x4", *sizes)
    assert done.code == 0 and "virtual time 0.0 us" in done.stdout, done.stderr


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "ideal"])
def test_presets_say_where_each_of_their_numbers_is_from(name: str) -> None:
    """By its name, in whole words; what is as where nothing is said needs no source."""
    device, nothing = PRESETS[name], Device(name=name)
    named = set(re.findall(r"\w+", " ".join(device.sources)))
    own = {field.name for field in fields(device) if getattr(device, field.name) != getattr(nothing, field.name)}
    assert own - named == {"sources"}


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--device /no/such\.toml cannot be read: No such file"):
        find_device("/no/such.toml")


@pytest.mark.mpi(ranks=[1, 4])
def test_a_run_on_a_file_is_a_run_on_its_numbers(comm: Any, tmp_path: Path) -> None:
    device = replace(WSE2, name="mine", alpha=3.0, route_entries=None)
    path = tmp_path / f"{comm.rank}.toml"
    path.write_text(as_toml(device))
    report = run_report(comm, "gemm", (4, 4), str(path), m=8, k=8, n=8)
    numbers = json.loads(json.dumps(asdict(device)))
    del numbers["sources"]
    assert report["device"] == numbers
    again = run_report(comm, "gemm", (4, 4), device, m=8, k=8, n=8)
    assert {**report, "host": None} == {**again, "host": None}


def test_the_command_writes_a_file_to_begin_from(run_meshrt: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(run_meshrt("devices", "wse3", "--toml").stdout)
    assert read_device(str(path)) == WSE3
    done = run_meshrt(
        "run", "gemm", "--device", str(path), "--m", "8", "--k", "8", "--n", "8", "--json", "-", "--quiet"
    )
    assert done.code == 0 and '"name": "wse3"' in done.stdout
    path.write_text('name = "a"\nwidht = 3\n')
    done = run_meshrt("run", "gemm", "--device", str(path))
    assert done.code == 2 and "widht is no key of a device" in done.stderr
    for wrong, message in (
        (("devices", "--toml"), "--toml writes one device"), (("devices", "wse9"), "no device 'wse9'"),
        (("devices", "a100", "--toml"), "--toml is for meshes (wse2, wse3, wormhole, dojo, ideal), and a100 is none"),
        (("devices", "wse9", "--toml"), "no device 'wse9', nor a file as mine.toml: did you mean wse3"),
        (("run", "llama-tiny", "--on", "arm", "--device", "mine.toml"), "A device of a file is for a mesh"),
        (("run", "gemm", "--device", "wse4"), "A file of your own may be given, too, as mine.toml. Did you mean wse3"),
    ):  # fmt: skip
        done = run_meshrt(*wrong)
        assert done.code == 2 and message in done.stderr, done.stderr
    assert "1 x little" not in (shown := run_meshrt("devices", "wormhole").stdout) and "8, 16, 16" in shown
