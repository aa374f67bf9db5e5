"""The rounds of an exchange that the compiled core goes through by itself, with their messages (onward.c).

That is where nothing else is carried out at the same time: else rounds of one and of the other take turns. Messages are
the same, and Python waits for those that are not there when they are asked for. Where tiles go to other ranks, and
where maps are kept, rounds are gone through one by one (exchange.py).
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.mesh.exchange.march import HEADER, PORTS, ROUNDS, March, reserve_held
from meshrt.mesh.mesh import NORTH, OPPOSITE, PORT_NAMES, SOUTH
from meshrt.mesh.wires.requests import MPI_CALLS, Posted, mpi_of
from meshrt.ranks.host import outnumbered

if TYPE_CHECKING:
    from meshrt.mesh.block import Block

DONE, MORE, FULL, AWAITED, FAILED = range(5)  # why the core comes back, as in onward.c
RECEIVE = 3  # what is next there
QUESTIONS = 2000, 16  # to MPI for a message before Python waits: some 100 us; and where ranks outnumber the cores
MESSAGE = np.dtype(
    [(name, np.int64) for name in ("rank", "bell", "data", "request", "count", "state", "messages", "packets")]
)
FLIGHT = np.dtype(
    [(name, np.int64) for name in ("marches", "many", "reserved")]
    + [(way, MESSAGE, PORTS) for way in ("leaving", "coming")]
)
BANDS = "rounds", "top", "bottom", "cut_north", "cut_south"
TABLE = np.dtype(  # Onward in onward.c
    [(name, np.int64) for name in ("flights", "many", "marches", "many marches", "next", "port", "flight", "round")]
    + [(name, np.int64) for name in ("most", *BANDS, "left", "fresh", "here")]
    + [(name, np.int64) for name in (*MPI_CALLS, "comm", "byte", "tag", "taken", "questions", "error")]
)


def go_on(block: "Block", flights: Sequence[Any], tag: int) -> None:
    """All rounds that are left of what is under way, if the compiled core can go through them by itself."""
    if block.core is None or block.mapped or not all(flight.goes_on(len(flights) == 1) for flight in flights):
        return
    onward = Onward(block, flights)
    if all(flight.whole for flight in flights) or onward.connect(tag):
        for flight in flights:
            flight.lay_out()
        onward.go()
        for flight in flights:
            flight.put_back()


class Onward:
    """Goes through the rounds that are left of transfers, each of marches that go in step."""

    def __init__(self, block: "Block", flights: Sequence[Any]) -> None:
        self.block, self.flights = block, flights
        self.marches: list[March] = [march for flight in flights for march in flight.marches]
        self.addresses = np.array([march.address for march in self.marches])
        self.table, self.of_flights = np.zeros((), TABLE), np.zeros(len(flights), FLIGHT)
        self.table["marches"], self.table["many marches"] = block.core.address(self.addresses), len(self.marches)
        self.table["flights"], self.table["many"] = block.core.address(self.of_flights), len(flights)
        self.of_flights["leaving"]["rank"] = self.of_flights["coming"]["rank"] = -1
        first = 0
        for of_flight, flight in zip(self.of_flights, flights, strict=True):
            of_flight["many"] = len(flight.marches)
            of_flight["marches"] = self.table["marches"] + first * self.addresses.itemsize
            first += len(flight.marches)
        self._plan_ahead()
        self.address = block.core.address(self.table)
        self.kept: list[np.ndarray] = []  # memory that the table has the addresses of

    def _plan_ahead(self) -> None:
        """Some rounds at once, where lines lie in the block whole, or from its first row to its last."""
        mesh, rows = self.block.mesh, self.block.shape[0]
        north, south = (mesh.neighbour(port) is not None for port in (NORTH, SOUTH))
        most = min(ROUNDS, rows // 2 if north or south else rows) if self.block.shape[1] == mesh.width else 1
        import os

        most = min(most, int(os.environ.get("RR", "16")))
        self.table["most"] = max(most, 1)
        self.table["top"], self.table["bottom"] = mesh.y0, mesh.y0 + rows
        self.table["cut_north"], self.table["cut_south"] = north, south
        for march in self.marches if most > 1 else []:
            march.plan_ahead(rows)

    def connect(self, tag: int) -> bool:
        """Prepare for messages. False where these are not the compiled core's to send."""
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
        for of_flight, flight in zip(self.of_flights, self.flights, strict=True):
            for way, port in product(("leaving", "coming"), range(PORTS)):
                rank = block.mesh.neighbour(port if way == "leaving" else OPPOSITE[port])
                if rank is not None:
                    data, request = np.empty(HEADER * flight.most_over_edge()), np.zeros(1, np.int64)
                    self.kept += [data, request]
                    bell = 0 if block.bells is None else block.bells.others.get(rank, 0)
                    addresses = block.core.address(data), block.core.address(request)
                    of_flight[way][port] = (rank, bell, *addresses, 0, 0, 0, 0)
        return True

    def go(self) -> None:
        """To the end."""
        block, table = self.block, self.table
        self._reserved()
        while (why := block.core.onward(self.address)) != DONE:
            if why == FULL:
                for flight in self.flights:
                    reserve_held(block, flight.name, flight.marches)
                self._reserved()
            elif why == AWAITED:
                self._wait(int(table["flight"]), int(table["port"]))
            if table["error"]:
                from mpi4py import MPI

                raise MPI.Exception(int(table["error"]))
        self.marches[0].count(block, *(int(table[name]) for name in ("left", "fresh", "here")))
        sent = self.of_flights["leaving"]
        block.host.messages += int(sent["messages"].sum())
        block.host.packets += int(sent["packets"].sum())
        block.host.bytes += int(sent["packets"].sum()) * HEADER * 8
        block.host.sent_to.update(sent["rank"][sent["messages"] > 0].tolist())

    def _reserved(self) -> None:
        self.of_flights["reserved"] = [self.block.memory.names[flight.name] for flight in self.flights]

    def _wait(self, flight: int, port: int) -> None:
        """Wait for what the core found not to be there yet, or not to have left."""
        block, comes = self.block, self.table["next"] == RECEIVE
        message = self.of_flights[flight]["coming" if comes else "leaving"][port]
        posted = Posted(partial(block.core.has_come, self.address, int(message["request"])))
        if not comes:
            block.wait(posted)
            return
        rank = int(message["rank"])
        block.watch.waiting(rank, f"a crossbar's packets going {PORT_NAMES[port]}".encode())
        block.wait(posted, rank, int(message["count"]) * HEADER * 8)
        block.watch.moving()
