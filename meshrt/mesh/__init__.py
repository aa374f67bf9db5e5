"""The mesh machine: cores on ranks, their memory, clocks and counters.

What programs of a user's own are made of can be imported from here: `from meshrt.mesh import Block, allreduce, ktree`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meshrt.errors import UsageError

if TYPE_CHECKING:
    from meshrt.mesh.block import Block
    from meshrt.mesh.collectives.allreduce import allreduce, ktree, pipeline
    from meshrt.mesh.collectives.rings import interleaved_rings, plain_rings
    from meshrt.mesh.collectives.shifts import align, rotate, start_shift
    from meshrt.mesh.exchange.exchange import crossbar, take
    from meshrt.mesh.tiles import gather, place, square
    from meshrt.mesh.wires.fabric import send, transfer
    from meshrt.mesh.wires.receiving import receive
    from meshrt.mesh.wires.routes import Route, chain, interleaved_ring, multicast, ring
    from meshrt.mesh.wires.software import stage
    from meshrt.mesh.wires.tables import installed

__all__ = [
    "Block", "Route", "UsageError", "align", "allreduce", "chain", "crossbar", "gather", "installed",
    "interleaved_ring", "interleaved_rings", "ktree", "multicast", "pipeline", "place",
    "plain_rings", "receive", "ring", "rotate", "send", "square", "stage", "start_shift", "take", "transfer",
]  # fmt: skip
_HOMES = {
    "block": ("Block",),
    "collectives.allreduce": ("allreduce", "ktree", "pipeline"),
    "collectives.rings": ("interleaved_rings", "plain_rings"),
    "collectives.shifts": ("align", "rotate", "start_shift"),
    "exchange.exchange": ("crossbar", "take"),
    "tiles": ("gather", "place", "square"),
    "wires.fabric": ("send", "transfer"),
    "wires.receiving": ("receive",),
    "wires.routes": ("Route", "chain", "interleaved_ring", "multicast", "ring"),
    "wires.software": ("stage",),
    "wires.tables": ("installed",),
}


def __getattr__(name: str) -> Any:
    """Late: most of who imports a module of the mesh needs none of the others."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"meshrt.mesh.{home}"), name)
    raise AttributeError(f"module 'meshrt.mesh' has no attribute {name!r}")
