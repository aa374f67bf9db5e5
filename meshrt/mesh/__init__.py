"""The mesh machine: cores on ranks, their memory, clocks and counters.

What programs of a user's own are made of can be imported from here: `from meshrt.mesh import Block, allreduce, ktree`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshrt.mesh.block import Block
    from meshrt.mesh.collectives.allreduce import allreduce, ktree, pipeline
    from meshrt.mesh.exchange.exchange import crossbar, take
    from meshrt.mesh.exchange.legs import Transfer
    from meshrt.mesh.tiles import gather, place
    from meshrt.mesh.wires.fabric import receive, send, transfer
    from meshrt.mesh.wires.routes import Path, Route, chain, interleaved_ring, multicast, ring
    from meshrt.mesh.wires.software import stage
    from meshrt.mesh.wires.tables import installed, installed_paths

__all__ = [
    "Block", "Path", "Route", "Transfer", "allreduce", "chain", "crossbar", "gather", "installed", "installed_paths",
    "interleaved_ring", "ktree", "multicast", "pipeline", "place", "receive", "ring", "send", "stage", "take",
    "transfer",
]  # fmt: skip
_HOMES = {
    "block": ("Block",),
    "collectives.allreduce": ("allreduce", "ktree", "pipeline"),
    "exchange.exchange": ("crossbar", "take"),
    "exchange.legs": ("Transfer",),
    "tiles": ("gather", "place"),
    "wires.fabric": ("receive", "send", "transfer"),
    "wires.routes": ("Path", "Route", "chain", "interleaved_ring", "multicast", "ring"),
    "wires.software": ("stage",),
    "wires.tables": ("installed", "installed_paths"),
}


def __getattr__(name: str) -> Any:
    """Late: most of who imports a module of the mesh needs none of the others."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"meshrt.mesh.{home}"), name)
    raise AttributeError(f"module 'meshrt.mesh' has no attribute {name!r}")
