"""Messages with what they wait for, of members of a group: as a GOAL schedule, or as Chakra execution traces.

GOAL: the text that LogGOPSim's txt2bin reads ("LogGOPSim - Simulating Large-Scale Applications in the LogGOPS
Model", 2010; its txt2bin.re). Chakra: a file for each member, of messages of
schema/protobuf/et_def.proto of mlcommons/chakra, each behind its length: a GlobalMetadata, then a Node for each
operation; with the attributes that ASTRA-sim's feeder reads.
"""

from collections.abc import Iterator, Sequence
from struct import pack
from typing import NamedTuple

CALC, SEND, RECEIVE = "calc", "send", "recv"
NODES = {CALC: 4, SEND: 5, RECEIVE: 6}  # COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE
VERSION = "0.0.4"  # of the schema
VARINT, FIXED64, LENGTH = 0, 1, 2  # wire types of Protocol Buffers
ATTRIBUTE = {"double": (3, FIXED64), "int32": (7, VARINT), "int64": (9, VARINT), "bool": (27, VARINT)}


class Operation(NamedTuple):
    """Computing for so many nanoseconds, or a message of so many bytes to or from a peer.

    `requires`: the operation, by its number among the member's, that has to be over; `follows`: one that has to have
    begun; -1: none. Numbers are lower than its own.
    """

    kind: str
    amount: int
    peer: int = -1
    tag: int = 0
    requires: int = -1
    follows: int = -1


def goal(members: Sequence[Sequence[Operation]]) -> Iterator[str]:
    """The text, in pieces: one a member."""
    yield f"num_ranks {len(members)}\n"
    for member, operations in enumerate(members):
        lines = [f"\nrank {member} {{\n"]
        for number, (kind, amount, peer, tag, requires, follows) in enumerate(operations, 1):
            if kind == CALC:
                lines.append(f"l{number}: calc {amount}\n")
            else:
                lines.append(f"l{number}: {kind} {amount}b {'to' if kind == SEND else 'from'} {peer} tag {tag}\n")
            if requires >= 0:
                lines.append(f"l{number} requires l{requires + 1}\n")
            if follows >= 0:
                lines.append(f"l{number} irequires l{follows + 1}\n")
        yield "".join([*lines, "}\n"])


def chakra(member: int, operations: Sequence[Operation]) -> Iterator[bytes]:
    """The file of a member, in pieces. Durations are whole microseconds: what is rounded off is made up for later."""
    yield _behind_length(_text(1, VERSION))
    spent = 0  # nanoseconds
    for number, (kind, amount, peer, tag, requires, _) in enumerate(operations, 1):
        node = _number(1, number) + _text(2, f"{kind} {number}") + _number(3, NODES[kind])
        if requires >= 0:
            node += _field(5, LENGTH, _varint(len(dependence := _varint(requires + 1))) + dependence)
        if kind == CALC:
            whole = round((spent + amount) / 1000) - round(spent / 1000)
            spent += amount
            node += _number(7, whole) + _attribute("is_cpu_op", "bool", 1) + _attribute("nanoseconds", "int64", amount)
        else:
            ends = (member, peer) if kind == SEND else (peer, member)
            node += _attribute("is_cpu_op", "bool", 0) + _attribute("comm_size", "int64", amount)
            node += _attribute("comm_src", "int32", ends[0]) + _attribute("comm_dst", "int32", ends[1])
            node += _attribute("comm_tag", "int32", tag)
        yield _behind_length(node)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _behind_length(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _field(number: int, wire_type: int, data: bytes) -> bytes:
    return _varint(number << 3 | wire_type) + data


def _number(number: int, value: int) -> bytes:
    """An integer or an enum; one of the value 0 is left out, as proto3 does."""
    return _field(number, VARINT, _varint(value)) if value else b""


def _text(number: int, text: str) -> bytes:
    return _field(number, LENGTH, _behind_length(text.encode()))


def _attribute(name: str, kind: str, value: int | float) -> bytes:
    """An AttributeProto of a node; its value is one of several, and there even if it is 0."""
    number, wire_type = ATTRIBUTE[kind]
    data = pack("<d", value) if wire_type == FIXED64 else _varint(int(value))
    return _field(10, LENGTH, _behind_length(_text(1, name) + _field(number, wire_type, data)))
