"""All messages of a run as a GOAL schedule and as Chakra traces: read back by the formats' own definitions."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
from measure import marks
from mpi4py import MPI
from runs import parted

from meshrt.emulate import emulate
from meshrt.errors import UsageError
from meshrt.groups.operations import CALC, NODES, RECEIVE, SEND, Operation, chakra, goal
from meshrt.mesh.device import Device
from meshrt.mesh.exchange.exchange import crossbar, exchange
from meshrt.mesh.exchange.legs import Transfer
from meshrt.mesh.look import messages
from meshrt.mesh.machine import gather, open_machine
from meshrt.mesh.wires import fabric, software
from meshrt.mesh.wires.routes import Route, chain
from meshrt.mesh.wires.tables import installed
from meshrt.program import load_program
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.studies.pictures.maps import read_maps

TINY = {"model": "llama-tiny", "prompt_ids": "1,2,3", "max_new_tokens": 2, "ignore_eos": True, "@core_memory": 300_000}
SMALL = {**TINY, "prompt_ids": "1,2", "max_new_tokens": 1, "layers": 1, "@mesh": "6x2", "@core_memory": 900_000}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemm": ("gemm", {"m": 20, "k": 33, "n": 17}),
    "gemm by broadcasts": ("gemm", {"m": 20, "k": 33, "n": 17, "algorithm": "allgather"}),
    "a tree, by shape": ("gemv", {"k": 40, "n": 24, "allreduce": "ktree", "@payload": False}),
    "KV cache": ("kvcache", {"tokens": 9}),
    "LLaMA": ("llama", {**TINY, "layers": 2}),
    "exchanges": ("llama", {**SMALL, "system": "t10"}),
    "exchanges along lines": ("llama", {**SMALL, "system": "ladder"}),
}
# Lines of a schedule, as txt2bin.re of LogGOPSim takes them; blanks are free there.
CALC_LINE = re.compile(r"([a-zA-Z]\w*): calc (\d+)")
MESSAGE_LINE = re.compile(r"([a-zA-Z]\w*): (?:(send) (\d+)b to|(recv) (\d+)b from) (\d+) tag (\d+)")
ORDER_LINE = re.compile(r"([a-zA-Z]\w*) (requires|irequires) ([a-zA-Z]\w*)")


def read_goal(text: str) -> list[list[Operation]]:
    """What each rank does. A label is defined before a dependence names it, as txt2bin asks."""
    first, *lines = text.splitlines()
    count = re.fullmatch(r"num_ranks (\d+)", first)
    assert count is not None
    ranks: list[list[Operation]] = []
    labels: dict[str, int] = {}
    inside = False
    for line in filter(None, lines):
        if match := re.fullmatch(r"rank (\d+) \{", line):
            assert not inside and int(match[1]) == len(ranks)
            ranks.append([])
            labels, inside = {}, True
        elif line == "}":
            assert inside
            inside = False
        elif match := ORDER_LINE.fullmatch(line):
            at, before = labels[match[1]], labels[match[3]]
            operation = ranks[-1][at]
            name = "requires" if match[2] == "requires" else "follows"
            assert getattr(operation, name) == -1 and before < at  # so that nothing goes in a circle
            ranks[-1][at] = operation._replace(**{name: before})
        else:
            assert inside
            match = CALC_LINE.fullmatch(line)
            if match:
                operation = Operation(CALC, int(match[2]))
            else:
                match = MESSAGE_LINE.fullmatch(line)
                assert match is not None, line
                _, send, sent, receive, received, peer, tag = match.groups()
                operation = Operation(send or receive, int(sent or received), int(peer), int(tag))
                assert int(tag) < 2**31 and 0 < operation.amount < 2**63
            assert match[1] not in labels
            labels[match[1]] = len(ranks[-1])
            ranks[-1].append(operation)
    assert not inside and len(ranks) == int(count[1])
    return ranks


def check_matches(ranks: Sequence[Sequence[Operation]]) -> None:
    """Every message that is sent is received once, and nobody waits for ever: all operations come to their end."""
    sent, received = (
        Counter(
            (*((rank, step.peer) if kind == SEND else (step.peer, rank)), step.tag, step.amount)
            for rank, its in enumerate(ranks) for step in its if step.kind == kind
        )
        for kind in (SEND, RECEIVE)
    )  # fmt: skip
    assert sent == received
    assert len({key[:3] for key in sent}) == len(sent) and max(sent.values(), default=1) == 1
    done = [[False] * len(its) for its in ranks]
    next_at, under_way = [0] * len(ranks), set[tuple[int, int, int]]()
    moved = True
    while moved:
        moved = False
        for rank, its in enumerate(ranks):
            while next_at[rank] < len(its):
                operation = its[next_at[rank]]
                assert operation.requires < 0 or done[rank][operation.requires]
                if operation.kind == RECEIVE and (operation.peer, rank, operation.tag) not in under_way:
                    break
                if operation.kind == SEND:
                    under_way.add((rank, operation.peer, operation.tag))
                done[rank][next_at[rank]] = moved = True
                next_at[rank] += 1
    assert all(map(all, done))


def node_types() -> Any:
    """The message types of et_def.proto that are written, for the official reader of Protocol Buffers."""
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    kinds = {"uint64": 4, "int64": 3, "int32": 5, "bool": 8, "string": 9, "double": 1, "message": 11}
    fields: dict[str, list[tuple[str, int, str, bool]]] = {
        "AttributeProto": [("name", 1, "string", False), ("doc_string", 2, "string", False),
                           ("double_val", 3, "double", False), ("int32_val", 7, "int32", False),
                           ("int64_val", 9, "int64", False), ("bool_val", 27, "bool", False)],
        "GlobalMetadata": [("version", 1, "string", False), ("attr", 2, "message", True)],
        "Node": [("id", 1, "uint64", False), ("name", 2, "string", False), ("type", 3, "int32", False),
                 ("ctrl_deps", 4, "uint64", True), ("data_deps", 5, "uint64", True),
                 ("start_time_micros", 6, "uint64", False), ("duration_micros", 7, "uint64", False),
                 ("attr", 10, "message", True)],
    }  # fmt: skip
    for name, its in fields.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for field, number, kind, repeated in its:
            added = message.field.add(name=field, number=number, type=kinds[kind], label=3 if repeated else 1)
            if kind == "message":
                added.type_name = ".ChakraProtoMsg.AttributeProto"
            elif name == "AttributeProto" and number > 2:
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
            for name in ("GlobalMetadata", "Node")]  # fmt: skip


def read_chakra(data: bytes, member: int) -> list[Operation]:
    """The nodes of a file, each behind its length, with the kinds of value that ASTRA-sim's feeder takes."""
    metadata_type, node_type = node_types()
    operations, at, first = [], 0, True
    while at < len(data):
        size = shift = 0
        while True:
            size |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                break
        piece, at = data[at : at + size], at + size
        if first:
            assert metadata_type.FromString(piece).version == "0.0.4"
            first = False
            continue
        node = node_type.FromString(piece)
        node.DiscardUnknownFields()
        assert node.SerializeToString(deterministic=True) == piece  # as the library itself would write it
        assert node.id == len(operations) + 1
        kind = {number: kind for kind, number in NODES.items()}[node.type]
        its = {
            attribute.name: (attribute.WhichOneof("value"), getattr(attribute, attribute.WhichOneof("value")))
            for attribute in node.attr
        }
        requires = node.data_deps[0] - 1 if node.data_deps else -1
        assert len(node.data_deps) < 2
        if kind == CALC:
            assert its["is_cpu_op"] == ("bool_val", True)
            operations.append(Operation(CALC, its["nanoseconds"][1], requires=requires))
        else:
            assert its["is_cpu_op"] == ("bool_val", False) and its["comm_size"][0] == "int64_val"
            assert all(its[name][0] == "int32_val" for name in ("comm_src", "comm_dst", "comm_tag"))
            ends = its["comm_src"][1], its["comm_dst"][1]
            assert ends[kind == RECEIVE] == member
            operations.append(Operation(kind, its["comm_size"][1], ends[kind == SEND], its["comm_tag"][1], requires))
    return operations


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", RUNS)
def test_messages_are_those_of_the_counters_on_any_ranks(name: str, tmp_path: Path, comm: Any) -> None:
    program, given = RUNS[name]
    options, how = parted(given)
    settings = {"mesh": "6x4"} | how
    folder, loaded = Path(comm.bcast(str(tmp_path))), load_program(program)
    files = {"goal": str(folder / "a.goal"), "chakra": str(folder / "a"), "maps": str(folder / "a.npz")}
    report = emulate(comm, Board.alone(), loaded, options, **files, **settings)
    if comm.rank:
        return
    off = emulate(MPI.COMM_SELF, Board.alone(), loaded, options, **settings)
    assert report["measured"] == off["measured"]
    if comm.size > 1:
        emulate(MPI.COMM_SELF, Board.alone(), loaded, options, goal=str(folder / "b.goal"), **settings)
        assert (folder / "a.goal").read_bytes() == (folder / "b.goal").read_bytes()
    ranks = read_goal((folder / "a.goal").read_text())
    check_matches(ranks)
    senders, receivers, nbytes, packets = read_maps(files["maps"]).arrays["total/pairs"].T.tolist()
    pairs: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for rank, its in enumerate(ranks):
        for operation in its:
            if operation.kind == SEND:
                pairs[rank, operation.peer][0] += operation.amount
                pairs[rank, operation.peer][1] += 1
    counted = zip(senders, receivers, nbytes, packets, strict=True)
    assert pairs == {(sender, receiver): [size, count] for sender, receiver, size, count in counted}
    if name in ("gemm", "KV cache"):  # elsewhere a packet may be for many
        assert sum(packets) == report["measured"]["messages"]
    for member, its in enumerate(ranks):
        nodes = read_chakra((folder / f"a.{member}.et").read_bytes(), member)
        assert nodes == [operation._replace(follows=-1) for operation in its]


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_what_a_message_waits_for(tmp_path: Path, comm: Any) -> None:
    path = Path(comm.bcast(str(tmp_path))) / "a.goal"
    device = Device(
        name="slow", alpha=2.0, beta=7.0, link_bytes_per_cycle=4.0, macs_per_cycle=1.0, clock_hz=0.5e9
    )  # fmt: skip
    block = open_machine(comm, Board.alone(), (4, 1), True, Console(), device=device, goal=str(path))
    tiles = block.tiles("sent", (5,), np.float32)
    tiles[...] = 1
    block.elementwise(tiles)  # 5 cycles of 2 ns
    with installed(block, "x", [Route(0, (1, 3))]) as to_two:
        fabric.transfer(block, to_two, tiles)
    with installed(block, "x", chain(4)) as east:
        software.stage(block, east, 0, marks(4, [1]))
        fabric.send(block, east, tiles, positions=marks(4, [1]))  # nobody waits for it
    with crossbar(block) as bar:  # 3 gets the tile of 1, by way of 2
        exchange(block, bar, Transfer(None, np.array([0, 1, 2, 1]), tiles[..., :2]))
    gather(block)
    if comm.rank:
        return
    calc = Operation(CALC, 10)
    assert read_goal(path.read_text()) == [
        [calc, Operation(SEND, 20, 1, 0, 0), Operation(SEND, 20, 3, 0, 0, 1)],
        [calc, Operation(RECEIVE, 20, 0, 0, 0), Operation(CALC, 14, requires=1), Operation(SEND, 20, 2, 1, 2),
         Operation(SEND, 8, 2, 3, 2, 3)],
        [calc, Operation(RECEIVE, 8, 1, 3, 0), Operation(CALC, 14, requires=1), Operation(SEND, 8, 3, 4, 2),
         Operation(RECEIVE, 20, 1, 1)],
        [calc, Operation(RECEIVE, 20, 0, 0, 0), Operation(RECEIVE, 8, 2, 4, 1)],
    ]  # fmt: skip


CALCS = st.integers(1, 10**7).map(lambda amount: Operation(CALC, amount))
MESSAGES = st.tuples(
    st.sampled_from([SEND, RECEIVE]), st.integers(1, 2**40), st.integers(0, 2**20), st.integers(0, 2**31 - 1)
).map(lambda parts: Operation(*parts))


@given(st.lists(CALCS | MESSAGES, max_size=30), st.integers(0, 2**20), st.randoms(use_true_random=False))
def test_what_is_written_is_read_back(its: list[Operation], member: int, random: Any) -> None:
    operations = [
        operation._replace(requires=random.randint(-1, at - 1), follows=random.randint(-1, at - 1))
        for at, operation in enumerate(its)
    ]
    assert read_goal("".join(goal([operations]))) == [operations]
    data = b"".join(chakra(member, operations))
    assert read_chakra(data, member) == [operation._replace(follows=-1) for operation in operations]
    whole = sum(operation.amount for operation in operations if operation.kind == CALC) / 1000
    assert abs(whole_micros(data, node_types()[1]) - whole) <= 0.5


def whole_micros(data: bytes, node_type: Any) -> int:
    """The sum of a file's durations."""
    at = total = 0
    while at < len(data):
        size = shift = 0
        while True:
            size, shift, at = size | (data[at] & 127) << shift, shift + 7, at + 1
            if data[at - 1] < 128:
                break
        if at > 7:  # behind the version
            total += node_type.FromString(data[at : at + size]).duration_micros
        at += size
    return total


def test_what_has_no_schedule_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(**given: Any) -> None:
        options, how = parted({**TINY} | given)
        settings = {"mesh": "6x4", "goal": str(tmp_path / "a.goal")} | how
        emulate(Alone(), Board.alone(), load_program("llama"), options, **settings)

    with pytest.raises(UsageError, match="goes on on another mesh of the wafer"):
        run(regions=2)
    with pytest.raises(UsageError, match="a part of this run stands for others"):
        run(layers_run=1, **{"@payload": False})
    monkeypatch.setattr(messages, "MOST", 100)
    with pytest.raises(UsageError, match="5 transfers on 6 x 4 cores are more than 100"):
        run()
    with pytest.raises(UsageError, match="a file a core, for 16384 cores at most"):
        open_machine(Alone(), Board.alone(), (200, 200), False, Console(), chakra=str(tmp_path / "a"))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(
    not (shutil.which("txt2bin") and shutil.which("LogGOPSim")),
    reason="LogGOPSim (github.com/spcl/LogGOPSim) is built from source, and not on PATH",
)
def test_loggopsim_goes_through_llama_tiny(tmp_path: Path) -> None:
    options, _ = parted(TINY)
    emulate(Alone(), Board.alone(), load_program("llama"), options, goal=str(tmp_path / "a.goal"), mesh="6x4",
            core_memory=300_000)  # fmt: skip
    subprocess.run(["txt2bin", "-i", tmp_path / "a.goal", "-o", tmp_path / "a.bin"], check=True, capture_output=True)
    ended = subprocess.run(["LogGOPSim", "-f", tmp_path / "a.bin"], check=True, capture_output=True, text=True)
    assert "Processes: 24" in ended.stdout and "Maximum finishing time" in ended.stdout
