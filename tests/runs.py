"""Running programs inside a test: one call, on the ranks of a communicator."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshrt.arm.device import find_arm_device
from meshrt.emulate import emulate
from meshrt.mesh.block import Block, make_block
from meshrt.mesh.device import Device
from meshrt.mesh.devicefile import find_device
from meshrt.mesh.presets import WSE2
from meshrt.neuron.device import find_neuron_device
from meshrt.program import load_program
from meshrt.ranks.board import Board
from meshrt.reports.report import gather_report

MADE: list[Any] = []  # communicators of blocks, by the test that runs, on one rank


# wse2 without software around operations, its memory in step: what its network and datapaths do by themselves.
NETWORK = replace(
    WSE2,
    chunk_cycles=None,
    loop_cycles=0.0,
    step_cycles=0.0,
    shift_cycles=0.0,
    collective_cycles=0.0,
    product_cycles=0.0,
)


def new_block(
    comm: Any, mesh: tuple[int, int], device: Device | str = "ideal", payload: bool = True, **limits: int
) -> Block:
    """A block of a mesh on the ranks of comm, without limits unless they are asked for."""
    machine = find_device(device, **limits) if isinstance(device, str) else device
    block = make_block(comm, machine, *mesh, Board.alone(), payload)
    if comm.size == 1:  # elsewhere messages may be under way, on which closing would wait
        MADE.extend((block.comm, block.control.comm, block.scouts.comm))
    return block


def close_blocks() -> None:
    """Give back the communicators of all blocks that were made: a process has two thousand, and tests make more."""
    while MADE:
        comm = MADE.pop()
        if comm:  # it has not been freed
            comm.Free()


def parted(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A program's options, and how it is started: what has names with @."""
    options = {key: value for key, value in given.items() if not key.startswith("@")}
    return options, {key[1:]: value for key, value in given.items() if key.startswith("@")}


def run_program(
    comm: Any, name: str, mesh: tuple[int, int], device: str = "ideal", limits: Any = None, payload: bool = True,
    **options: Any,
) -> Any:  # fmt: skip
    """Run a program with its default options but for these; the report at rank 0, None elsewhere."""
    program = load_program(name)
    block = new_block(comm, mesh, device, payload, **(limits or {}))
    arguments = program.complete(options)
    result = program.run(block, **arguments)
    return gather_report("mesh", block, program.name, arguments, result, {"wall_seconds": 0.0})


def run_on_cores(
    comm: Any, name: str, cores: int = 1, device: str = "trn1", limits: Any = None, payload: bool = True,
    trace: str | None = None, **options: Any,
) -> Any:  # fmt: skip
    """Run a program on NeuronCores; the report at rank 0, None elsewhere."""
    program = load_program(name, "neuron")
    machine = find_neuron_device(device, **(limits or {}))
    return emulate(comm, Board.alone(), program, options, cores=cores, device=machine, payload=payload, trace=trace)


def run_on_gpus(comm: Any, name: str, payload: bool = True, options: Any = None, **settings: Any) -> Any:
    """Run a program on GPUs; the report at rank 0, None elsewhere."""
    program = load_program(name, "gpu")
    return emulate(comm, Board.alone(), program, options or {}, payload=payload, **settings)


def run_on_arm(
    comm: Any, name: str, cores: int | None = None, device: str = "n2x8", limits: Any = None, payload: bool = True,
    spill: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """Run a program on a system on a chip; the report at rank 0, None elsewhere."""
    program = load_program(name, "arm")
    machine = find_arm_device(device, **(limits or {}))
    settings = {"cores": cores, "device": machine, "spill": spill}
    return emulate(comm, Board.alone(), program, options, payload=payload, **settings)
