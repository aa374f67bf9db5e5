"""Prefill and decode of MeshInfra/WaferLLM beside NumPy: MESHRT_WAFERLLM=DIR names a checkout, none of it is here."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrt.csl.language.program import build
from meshrt.csl.machine.wafer import Wafer
from tests.csl.rendered_cores import HALF, Cores, cores_of
from tests.csl.rendered_decode import decode
from tests.csl.rendered_prefill import prefill

FOLDER = os.environ.get("MESHRT_WAFERLLM", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="MESHRT_WAFERLLM names no checkout of MeshInfra/WaferLLM")
SIDE = 8
RESULTS = ("X_norm_tile", "XQ_tile", "XK_tile", "XV_tile", "score", "output_tile", "h1_tile", "Z_norm_tile", "z1_tile",
           "z2_tile", "z3_tile", "h2_tile", "Z_tile")  # fmt: skip
DECODED = ("X_norm_tile", "QKV_tile", "score", "output_tile", "h1_tile", "z_norm_tile", "ZZ_tile", "z3_tile", "h2_tile",
           "Z_tile")  # fmt: skip


def fill(wafer: Wafer, inputs: dict[str, tuple[float, float]]) -> None:
    """Numbers between two bounds to every core's variables of these names."""
    rng = np.random.default_rng(7)
    for core in wafer.cores.values():
        for address, nbytes, name in core.image.symbols:
            if name in inputs:
                core.m_float16[address // 2 : (address + nbytes) // 2] = rng.uniform(*inputs[name], nbytes // 2)


def ran(layout: str, parameters: dict[str, int], arch: str, inputs: dict[str, Any], main: str) -> tuple[Wafer, Any]:
    """One layer of a kernel: the wafer after it, and its cores before."""
    wafer = Wafer(build(Path(FOLDER) / layout, parameters, arch))
    wafer.launch("init_task", ())
    wafer.idle()
    fill(wafer, inputs)
    before = cores_of(wafer)
    wafer.launch(main, (0, 1))
    wafer.idle()
    return wafer, before


@pytest.mark.parametrize(("dim", "rows", "ffn"), [(8, 8, 8), (8, 4, 16), (4, 8, 12)])
def test_prefill(dim: int, rows: int, ffn: int) -> None:
    """With numbers in what should be the sum of input and attention: in a fresh core it is 0, and all is NaN."""
    parameters = {"P": SIDE, "dim_p_pe": dim, "pes_p_head": SIDE, "pes_p_kv_head": SIDE, "head_dim_p_pe": dim,
                  "seq_len_p_pe": rows, "ffn_dim_p_pe": ffn}  # fmt: skip
    weights = [f"{name}_weight_tile" for name in ("Q", "K", "V", "O", "UP", "GATE", "DOWN")]
    inputs = dict.fromkeys((*weights, "freqs_sin", "freqs_cos"), (-0.3, 0.3))
    inputs |= dict.fromkeys(("X_tile", "W_tile", "Z_tile"), (0.2, 1.0)) | {"GATE_weight_tile": (0.01, 0.1)}
    wafer, cores = ran("Prefill/WSE-2/src/layout.csl", parameters, "wse2", inputs, "prefill_host")
    prefill(cores, dim, rows, ffn)
    compare(wafer, cores, RESULTS, 1)


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(
    ("groups", "batch", "dim", "rows", "ffn"), [(2, 1, 8, 8, 8), (4, 2, 8, 8, 12), (2, 2, 6, 6, 8)]
)
def test_decode(groups: int, batch: int, dim: int, rows: int, ffn: int, arch: str) -> None:
    """Sums are of the same chains; which of two comes first was not looked up, so the last bits may differ."""
    size = SIDE // groups
    parameters = {"P": SIDE, "bsz": batch, "dim_p_pe": dim, "seq_len_p_pe": rows, "ffn_dim_p_pe": ffn,
                  "pes_p_head": SIDE, "pes_p_kv_head": SIDE, "head_dim_p_pe": dim, "pe_num_p_group": size,
                  "root_1st_phase": size // 2, "root_2nd_phase": groups // 2 * size + size // 2}  # fmt: skip
    weights = [f"{name}_weight_tile" for name in ("Q", "K", "V", "O", "UP", "GATE", "DOWN")]
    inputs = dict.fromkeys((*weights, "XKCache_tile", "XVCache_tile", "freqs_sin", "freqs_cos"), (-0.3, 0.3))
    inputs |= dict.fromkeys(("X_tile", "W_tile"), (0.2, 1.0))
    wafer, cores = ran(f"Decode/WSE-{arch[-1]}/src/layout.csl", parameters, arch, inputs, "decode_host")
    decode(cores, groups, batch, dim, rows, ffn, dim)
    compare(wafer, cores, DECODED, 8)


def compare(wafer: Wafer, cores: Cores, names: tuple[str, ...], roundings: int) -> None:
    """The largest difference of each variable, in roundings of its largest number."""
    rendered = cores_of(wafer)
    sizes = {name: nbytes // 2 for core in wafer.cores.values() for _, nbytes, name in core.image.symbols}
    for name in names:
        mine, its = (side.get(side.where[name], sizes[name]).astype(float) for side in (cores, rendered))
        assert np.isfinite(its).all() and its.any(), name
        assert np.abs(mine - its).max() <= roundings * np.finfo(HALF).eps * np.abs(its).max(), name
