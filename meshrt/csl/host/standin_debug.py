"""What host scripts import to look at a core after the run: traces of <debug>."""

from __future__ import annotations

from typing import Any

from meshrt.csl.errors import CslError

MARGIN = (4, 1)  # where the program's rectangle begins on the fabric that scripts number


class debug_util:
    def __init__(self, bindir: Any, **options: Any):
        from meshrt.csl.host.standin import OPENED

        if str(bindir) not in OPENED:
            raise CslError(f"debug_util looks at a program that has run: none was run from {bindir}")
        self._wafer = OPENED[str(bindir)].wafer

    def read_trace(self, px: int, py: int, key: str) -> list[Any]:
        core = self._wafer.cores.get((px - MARGIN[0], py - MARGIN[1]))
        if core is None:
            raise CslError(f"core ({px}, {py}) of the fabric has no code: the rectangle begins at {MARGIN}")
        return list(core.trace.get(key, []))

    def get_symbol(self, px: int, py: int, name: str, dtype: Any) -> Any:
        core = self._wafer.cores[px - MARGIN[0], py - MARGIN[1]]
        for address, nbytes, variable in core.image.symbols:
            if variable == name:
                return core.memory[address : address + nbytes].view(dtype).copy()
        raise CslError(f"core ({px}, {py}) has no variable {name!r}")
