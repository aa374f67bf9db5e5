"""The rounds of an exchange that the compiled core goes through by itself, with their messages (onward.c).

That is where nothing else is carried out at the same time: else rounds of one and of the other take turns. Messages are
the same, and Python waits for those that are not there when they are asked for. Where tiles go to other ranks, and
where maps are kept, rounds are gone through one by one (exchange.py).
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from meshrt.mesh.exchange.march import HEADER, PORTS, March, reserve_held
from meshrt.mesh.mesh import OPPOSITE, PORT_NAMES
from meshrt.mesh.wires.requests import MPI_CALLS, Posted, mpi_of
from meshrt.ranks.host import outnumbered

if TYPE_CHECKING:
    from meshrt.mesh.block import Block

DONE, MORE, FULL, AWAITED, FAILED = range(5)  # why the core comes back, as in onward.c
RECEIVE = 2  # what is next there
QUESTIONS = 2000, 16  # to MPI for a message before Python waits: some 100 us; and where ranks outnumber the cores
MESSAGE = np.dtype(
    [(name, np.int64) for name in ("rank", "bell", "data", "request", "count", "state", "messages", "packets")]
)
TABLE = np.dtype(  # Onward in onward.c
    [(name, np.int64) for name in ("marches", "many", "reserved", "next", "port", "left", "fresh", "here")]
    + [(name, np.int64) for name in (*MPI_CALLS, "comm", "byte", "tag", "taken", "questions", "error")]
    + [(way, MESSAGE, PORTS) for way in ("leaving", "coming")]
)


class Onward:
    """Goes through the rounds that are left of an exchange, whose marches go in step."""

    def __init__(self, block: "Block", marches: Sequence[March], name: str) -> None:
        self.block, self.marches, self.name = block, marches, name
        self.addresses = np.array([march.address for march in marches])
        self.table = np.zeros((), TABLE)
        self.table["marches"], self.table["many"] = block.core.address(self.addresses), len(marches)
        self.table["leaving"]["rank"] = self.table["coming"]["rank"] = -1
        self.address = block.core.address(self.table)
        self.kept: list[np.ndarray] = []  # memory that the table has the addresses of

    def connect(self, tag: int, most: int) -> bool:
        """Prepare for messages of so many packets at most. False where these are not the compiled core's to send."""
        block, table = self.block, self.table
        calls = mpi_of(block)
        if calls is None:
            return False
        functions, handles = calls
        for name, function in zip(MPI_CALLS, functions, strict=True):
            table[name] = function
        table["comm"], table["byte"] = np.array(handles, np.uint64).view(np.int64)
        table["tag"], table["questions"] = tag, QUESTIONS[outnumbered()]
        if block.bells is not None:
            table["taken"] = block.core.address(block.bells.taken)
        for way in ("leaving", "coming"):
            for port in range(PORTS):
                rank = block.mesh.neighbour(port if way == "leaving" else OPPOSITE[port])
                if rank is not None:
                    data, request = np.empty(HEADER * most), np.zeros(1, np.int64)
                    self.kept += [data, request]
                    bell = 0 if block.bells is None else block.bells.others.get(rank, 0)
                    addresses = block.core.address(data), block.core.address(request)
                    table[way][port] = (rank, bell, *addresses, 0, 0, 0, 0)
        return True

    def go(self) -> None:
        """To the end."""
        block, table = self.block, self.table
        table["reserved"] = block.memory.names[self.name]
        while (why := block.core.onward(self.address)) != DONE:
            if why == FULL:
                reserve_held(block, self.name, self.marches)
                table["reserved"] = block.memory.names[self.name]
            elif why == AWAITED:
                self._wait(int(table["port"]))
            if table["error"]:
                from mpi4py import MPI

                raise MPI.Exception(int(table["error"]))
        self.marches[0].count(block, *(int(table[name]) for name in ("left", "fresh", "here")))
        sent = table["leaving"]
        block.host.messages += int(sent["messages"].sum())
        block.host.packets += int(sent["packets"].sum())
        block.host.bytes += int(sent["packets"].sum()) * HEADER * 8
        block.host.sent_to.update(sent["rank"][sent["messages"] > 0].tolist())

    def _wait(self, port: int) -> None:
        """Wait for what the core found not to be there yet, or not to have left."""
        block, comes = self.block, self.table["next"] == RECEIVE
        message = self.table["coming" if comes else "leaving"][port]
        posted = Posted(partial(block.core.has_come, self.address, int(message["request"])))
        if not comes:
            block.wait(posted)
            return
        rank = int(message["rank"])
        block.watch.waiting(rank, f"a crossbar's packets going {PORT_NAMES[port]}".encode())
        block.wait(posted, rank, int(message["count"]) * HEADER * 8)
        block.watch.moving()
