"""Where packets were: the bytes of the links and ramps that they crossed; and maps, if they are kept, of the cores that
they left and of those whose software touched them.
"""

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.wires.lines import Index, View
from meshrt.mesh.wires.planning import ChosenCores
from meshrt.mesh.wires.schedule import Schedule


def sent(block: Cores, schedule: Schedule, view: View, nbytes: int) -> None:
    """A transfer on the lines of a view, of tiles of so many bytes. It is entered in the maps later: see `settle`."""
    use = schedule, view, nbytes
    block.uses[use] = block.uses.get(use, 0) + 1


def settle(block: Cores) -> None:
    """Enter the bytes of all transfers since the last time at the links and ramps that they crossed, whichever block's
    they are: they were sent in the segment that is running.
    """
    for active in block.ledger.at_work.values():
        if active.summed:
            _settle_sums(active)
        for (schedule, view), nbytes in active.traffic.items():
            links, ramps = view.of(active.link_bytes, 1), view.of(active.ramp_bytes, 1)
            for way, cores, packets in schedule.crossings:
                links[way][:, cores] += packets * nbytes
            for cores, packets in schedule.departures:
                ramps[0][:, cores] += packets * nbytes
            ramps[1][:, schedule.delivered] += nbytes
        active.traffic.clear()
        if active.mapped:
            _settle_maps(active)


def _settle_sums(block: Cores) -> None:
    """Count what sums that were made as a whole have moved and added: as fabric._send and software.do, many at once."""
    counters, host, traffic = block.ledger.counters, block.ledger.host, block.traffic
    for table, times in block.summed.items():
        numbers = table.counted
        counters.messages += times * numbers.messages
        counters.hops += times * numbers.hops
        counters.wafer_hops += times * numbers.wafer_hops
        counters.stages += times * numbers.stages
        counters.adds += times * numbers.adds
        counters.operand_bytes += times * numbers.operand_bytes
        counters.max_hops = max(counters.max_hops, numbers.max_hops)
        host.messages += times * table.host.messages
        host.packets += times * table.host.packets
        host.bytes += times * table.host.bytes
        for key, nbytes in table.traffic.items():
            traffic[key] = traffic.get(key, 0) + times * nbytes
    block.summed.clear()


def _settle_maps(block: Cores) -> None:
    """Enter all transfers since the last time, and the cores' work, in the maps of the segment that is running."""
    maps, clock = block.maps, block.clock
    for (schedule, view, nbytes), times in block.uses.items():
        messages, packets, busy = view.of(maps.messages), view.of(maps.link_packets, 1), view.of(maps.link_busy, 1)
        for batch in schedule.batches:
            for _, cores in batch.sources:
                messages[:, cores] += times
        for way, cores, crossing in schedule.crossings:
            packets[way][:, cores] += times * crossing
            busy[way][:, cores] += times * crossing * block.device.busy_cycles(nbytes)
    if block.uses:
        _settle_pairs(block)
    block.uses.clear()
    assert clock.busy is not None
    maps.add("busy", clock.busy)
    clock.busy[...] = 0


def _settle_pairs(block: Cores) -> None:
    """Enter who sent these transfers to whom."""
    from meshrt.mesh.look import pairs  # most runs have no maps

    packets, _ = block.pairs
    parts = []
    for (schedule, view, nbytes), times in block.uses.items():
        keys, often = pairs.of_schedule(packets, block.mesh, schedule, view)
        parts.append((keys, times * often, nbytes))
    packets.add(parts)


def touched(block: Cores, chosen: ChosenCores, stages: int, cycles: float) -> None:
    """Software at these cores worked for so many cycles, and touched so many packets."""
    assert block.clock.busy is not None
    for view in chosen.views:
        if stages:
            view.of(block.maps.stages)[:, chosen.at] += stages
        view.of(block.clock.busy)[:, chosen.at] += cycles


def handed_on(
    block: Cores, view: View, port: int, cores: Index, busy: np.ndarray, nbytes: np.ndarray, sent_on: np.ndarray
) -> None:
    """At these positions of a view a packet left a core by the port, and kept the link busy for so many cycles.

    `sent_on` (bool): those that software had taken in before.
    """
    maps = block.maps
    assert block.clock.busy is not None
    view.of(maps.messages)[:, cores] += 1
    view.of(maps.link_packets, 1)[port][:, cores] += 1
    view.of(maps.handed, 1)[port][:, cores] += 1
    view.of(maps.handed_bytes, 1)[port][:, cores] += nbytes
    view.of(maps.link_busy, 1)[port][:, cores] += busy
    view.of(maps.stages)[:, cores] += sent_on
    view.of(block.clock.busy)[:, cores] += block.device.beta * sent_on
