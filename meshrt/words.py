"""The words of meshrt, as `meshrt explain` tells them: what a program, a report and the documentation mean by them."""

WORDS = {
    "device": "the numbers of a machine: limits, costs, rates, each with its source (`meshrt devices`)",
    "machine": "the kind of what a program runs on: a mesh of cores, NeuronCores, GPUs. Each has counters of its own",
    "mesh": "W x H cores. (x, y): x grows to the east, y to the south",
    "core": "one processing element: memory, a router with five ports (north, east, south, west, ramp), a clock",
    "router": "what moves packets at a core: it looks up colour and incoming port in its table, once for each hop",
    "ramp": "the port between a router and its own core; a link like the others",
    "block": "the rectangle of cores that one rank hosts: an array [bh, bw, *tile] of their tiles",
    "line": "one row or one column of cores. Nearly all communication of these algorithms runs along lines",
    "colour": "a route's id in a router's table. An entry: colour -> (ports it comes in by, ports it leaves by)",
    "entry": "one rule of a router's table. What the table has no room for is refused, or relayed by software",
    "packet": "header (colour, source, hops and stages so far, time) and a tile",
    "hop": "one router-to-router move of a packet. Costs alpha cycles",
    "stage": "software at a core touches a packet, to relay it or to add to it. Costs beta cycles. Not a part of a"
    " pipeline: that is a region",
    "tile": "the part of a matrix that one core holds: M K N are whole, Mt Kt Nt of a core",
    "critical path": "the chain of events that the last core had to wait for",
    "phase": "a stretch of a run with a name and counters of its own. All cores begin it when the last one is there",
    "region": "a part of the mesh that holds some layers of a model",
    "rank": "an MPI process. How many there are changes nothing outside `host` of a report",
    "result": "what a program says of itself; declared, but for what it measured of the machine, such as ttft_seconds",
    "payload": "the numbers in tiles. --payload none leaves them out: the same counters, shapes only",
    "plmr": "Parallelism, Latency, Memory, Routing: the four limits of such machines (`meshrt plmr`)",
}
