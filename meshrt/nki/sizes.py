"""`nl.tile_size`: the sizes that tiles can have at most, of the device that the kernel runs on."""

from __future__ import annotations

from typing import NoReturn

from meshrt.nki.names import MissingName, told
from meshrt.nki.session import session


class _TileSize:
    pmax = 128
    psum_fmax = psum_bank_fmax = gemm_moving_fmax = bn_stats_fmax = 512
    psum_bank_fmax_bytes = 2048
    gemm_stationary_fmax = 128
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def psum_num_banks(self) -> int:
        return session().core.psum.banks

    @property
    def sbuf_fmax_bytes(self) -> int:
        return session().device.sbuf_partition_bytes

    total_available_sbuf_size = sbuf_fmax_bytes  # its name until 0.4

    @property
    def sbuf_fmax(self) -> int:
        return self.sbuf_fmax_bytes // 4

    @property
    def sbuf_size_bytes(self) -> int:
        return self.sbuf_fmax_bytes * self.pmax

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise MissingName(told("nl.tile_size", name, [member for member in dir(_TileSize) if member[0] != "_"]))


tile_size = _TileSize()
