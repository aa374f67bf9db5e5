"""8_guard.py: a job that ends with code 3 when a change makes the collective longer than it has to be."""

import sys
from pathlib import Path

import meshrt

HERE = Path(__file__).parent
WIDTHS = 4, 8, 16, 32

chains = meshrt.sweep(str(HERE / "6_allreduce.py"), mesh=[(width, 1) for width in WIDTHS])
halves = meshrt.sweep(str(HERE / "7_middle.py"), mesh=[(width, 1) for width in WIDTHS])
broken = 0
for width, chain, half in zip(WIDTHS, chains, halves, strict=True):
    stages, cycles = half["critical_path.stages"], half["critical_path.cycles"]
    longest = width // 2 + 1  # stages: one a core of a half, and one more for the middle, where both halves meet
    broken += stages > longest or half.result["wrong"] != 0
    print(f"{width:2} cores: {chain['critical_path.cycles']:4.0f} cycles by a chain, {cycles:4.0f} by halves")
sys.exit(3 if broken else 0)
