"""What WaferLLM (OSDI 2025) prints in its Tables 2 to 8 and claims in sections 7.2 and 7.3, as data.

Rows of a WSE-2 are what is emulated; those of GPUs stand beside them. A value of None is missing in the text that
these were taken from, which has lost the last column of Table 2. Nothing missing is filled in.
"""

from dataclasses import dataclass
from typing import Literal

PublishedSystem = Literal["waferllm", "as-published", "t10", "t10-inferred", "ladder", "ladder-inferred", "a100"]
WSE: tuple[PublishedSystem, ...] = ("waferllm", "t10", "ladder")
# Beside a system's cells: waferllm's own programs; what these tables suggest.
OTHERS: dict[PublishedSystem, PublishedSystem] = {
    "waferllm": "as-published", "t10": "t10-inferred", "ladder": "ladder-inferred",
}  # fmt: skip
INFERRED: tuple[PublishedSystem, ...] = (
    "t10-inferred",
    "ladder-inferred",
)  # read off the tables: only where they are asked for
PROGRAMS: tuple[PublishedSystem, ...] = ("waferllm", "as-published")
SYSTEMS: dict[str, tuple[PublishedSystem, ...]] = {  # of the tables of whole models
    **dict.fromkeys("234", (*PROGRAMS, "t10", "t10-inferred", "ladder", "ladder-inferred")),
    **dict.fromkeys("78", PROGRAMS),
}
MODELS = ("llama3-8b", "llama2-13b", "codellama-34b", "qwen2-72b")
GPUS = {"1 GPU": 1, "8 GPUs": 8, "2x8 GPUs": 16}

# Section 7.1: what LLaMA2 and LLaMA3 run on in Tables 2 and 5.
PREFILL_MESH = {"llama3-8b": 660, "llama2-13b": 750}
DECODE_MESH = {"llama3-8b": 360, "llama2-13b": 375}
NOMINAL_CORES = 850_000  # of a WSE-2, sections 1 and 7

# Section 7.5 has "37x the power"; the energy ratios of Tables 6 to 8 follow from their own times with 37.5.
WSE_A100_POWER = 37.5
A100_WATTS = 400.0  # of the board, NVIDIA A100 datasheet, SXM4; with it a WSE-2 takes 15 kW


@dataclass(frozen=True)
class PublishedCell:
    """One number of a table: which it is, and the value. `unit` is tokens/s, tokens, ms or ratio."""

    table: int
    model: str  # or the size of a product, in Table 6
    system: PublishedSystem
    column: str
    value: float | None
    unit: str


TPR = "tokens/s"

TABLE2_COLUMNS = ("2048/128", "4096/128", "2048/2048", "4096/4096")
_TABLE2: dict[tuple[str, PublishedSystem, str], tuple[float, ...]] = {
    ("llama3-8b", "waferllm", ""): (764.4, 604.4, 2370.3),
    ("llama3-8b", "t10", ""): (4.6, 4.5, 58.3),
    ("llama3-8b", "ladder", ""): (1.2, 1.1, 7.4),
    ("llama3-8b", "a100", "1 GPU"): (34.8, 31.1, 36.5),
    ("llama3-8b", "a100", "8 GPUs"): (117.2, 109.0, 128.4),
    ("llama3-8b", "a100", "2x8 GPUs"): (73.7, 70.2, 79.3),
    ("llama2-13b", "waferllm", ""): (473.9, 414.0, 1690.3),
    ("llama2-13b", "t10", ""): (2.6, 2.5, 35.0),
    ("llama2-13b", "ladder", ""): (0.7, 0.7, 4.9),
    ("llama2-13b", "a100", "1 GPU"): (20.4, 17.1, 21.1),
    ("llama2-13b", "a100", "8 GPUs"): (79.6, 70.5, 86.9),
}

TABLE3_COLUMNS = ("480x480", "600x600", "720x720")
_TABLE3: dict[tuple[str, PublishedSystem], tuple[float, ...]] = {
    ("llama3-8b", "waferllm"): (20320.6, 25037.2, 27686.5),
    ("llama3-8b", "t10"): (175.0, 156.6, 132.8),
    ("llama3-8b", "ladder"): (61.8, 42.3, 31.3),
    ("llama3-8b", "a100"): (13988.3, 17361.6, 13994.2),
    ("llama2-13b", "waferllm"): (13685.1, 16854.2, 17498.3),
    ("llama2-13b", "t10"): (121.3, 100.6, 81.3),
    ("llama2-13b", "ladder"): (47.3, 33.1, 24.2),
    ("llama2-13b", "a100"): (7805.1, 12287.1),
    ("codellama-34b", "waferllm"): (5471.4, 7540.1, 8526.0),
    ("codellama-34b", "t10"): (49.1, 46.8, 41.2),
    ("codellama-34b", "ladder"): (30.1, 23.1, 17.7),
    ("codellama-34b", "a100"): (5382.5, 7155.5, 6409.2),
    ("qwen2-72b", "waferllm"): (2785.2, 3775.5, 4421.6),
    ("qwen2-72b", "t10"): (24.9, 23.5, 21.5),
    ("qwen2-72b", "ladder"): (16.8, 12.8, 10.1),
    ("qwen2-72b", "a100"): (1677.3, 3803.8, 3750.5),
}

TABLE4_COLUMNS = ("420x420", "540x540", "660x660")
_TABLE4: dict[tuple[str, PublishedSystem], tuple[float, ...]] = {
    ("llama3-8b", "waferllm"): (2699.9, 2501.5, 2243.3),
    ("llama3-8b", "t10"): (418.3, 339.4, 265.1),
    ("llama3-8b", "ladder"): (14.6, 13.1, 11.4),
    ("llama3-8b", "a100"): (78.9, 260.4, 164.6),
    ("llama2-13b", "waferllm"): (2039.2, 1899.4, 1739.8),
    ("llama2-13b", "t10"): (341.8, 270.8, 233.7),
    ("llama2-13b", "ladder"): (11.0, 9.9, 9.0),
    ("llama2-13b", "a100"): (48.7, 175.8),
    ("codellama-34b", "waferllm"): (1450.8, 1407.7, 1359.2),
    ("codellama-34b", "t10"): (278.2, 222.4, 193.1),
    ("codellama-34b", "ladder"): (6.1, 6.2, 5.8),
    ("codellama-34b", "a100"): (26.1, 100.4, 84.5),
    ("qwen2-72b", "waferllm"): (839.7, 824.3, 787.1),
    ("qwen2-72b", "t10"): (168.5, 133.0, 114.6),
    ("qwen2-72b", "ladder"): (3.2, 3.3, 3.4),
    ("qwen2-72b", "a100"): (10.6, 51.2, 48.7),
}

TABLE5_COLUMNS = ("concat", "shift")
_TABLE5 = {"llama3-8b": (382.0, 137548.0), "llama2-13b": (16.0, 6168.0)}

TABLE6_SIZES = {"16K": 16384, "32K": 32768}
_Block = tuple[tuple[float, ...], float, tuple[float, ...]]
_TABLE6: dict[str, _Block] = {  # milliseconds: the GPUs', the WSE-2's, energy ratios
    "16K": ((0.336, 0.253, 0.340), 0.0012, (7.47, 44.97, 120.88)),
    "32K": ((1.231, 0.341, 0.339), 0.00203, (16.17, 35.83, 71.25)),
}

_TABLE7: dict[str, _Block] = {  # tokens/s: the GPUs', the WSE-2's, energy ratios
    "llama3-8b": ((13988.0, 17361.0, 13994.0), 27686.0, (0.05, 0.34, 0.84)),
    "llama2-13b": ((7805.0, 12287.0), 17498.0, (0.06, 0.30)),
}
_TABLE8: dict[str, _Block] = {
    "llama3-8b": ((78.0, 260.0, 164.0), 2700.0, (0.92, 2.22, 7.02)),
    "llama2-13b": ((48.0, 175.0), 2039.0, (1.13, 2.49)),
}


def table(number: int) -> list[PublishedCell]:
    """The cells of a table, 2 to 8, in the paper's order."""
    if number == 2:
        return [
            PublishedCell(2, model, system, f"{column} {gpus}".strip(), value, TPR)
            for (model, system, gpus), values in _TABLE2.items()
            for column, value in zip(TABLE2_COLUMNS, (*values, None), strict=True)
        ]
    if number in (3, 4):
        columns, values = (TABLE3_COLUMNS, _TABLE3) if number == 3 else (TABLE4_COLUMNS, _TABLE4)
        return [
            PublishedCell(number, model, system, column, value, TPR)
            for (model, system), row in values.items()
            for column, value in zip(tuple(GPUS) if system == "a100" else columns, row, strict=False)
        ]
    if number == 5:
        return [
            PublishedCell(5, model, "waferllm", column, value, "tokens")
            for model, row in _TABLE5.items()
            for column, value in zip(TABLE5_COLUMNS, row, strict=True)
        ]
    rows = {6: _TABLE6, 7: _TABLE7, 8: _TABLE8}[number]
    unit = "ms" if number == 6 else TPR
    return [cell for name, row in rows.items() for cell in _against_gpus(number, name, unit, *row)]


def _against_gpus(
    number: int, name: str, unit: str, gpus: tuple[float, ...], wafer: float, energy: tuple[float, ...]
) -> list[PublishedCell]:
    """One block of Tables 6 to 8: what GPUs take, what the wafer takes, and how their energies compare."""
    return [
        *(PublishedCell(number, name, "a100", count, value, unit) for count, value in zip(GPUS, gpus, strict=False)),
        PublishedCell(number, name, "waferllm", "WSE-2", wafer, unit),
        *(
            PublishedCell(number, name, "waferllm", f"energy, {count} / WSE-2", value, "ratio")
            for count, value in zip(GPUS, energy, strict=False)
        ),
    ]


@dataclass(frozen=True)
class Claim:
    """A sentence of the text, in short, as bounds on a number: at least `low`, at most `high`.

    GEMM: 2-3x over SUMMA and Cannon, around 17 % fewer cycles at large sizes; with 720 x 720 cores over 70 %
    computational efficiency, the others below 50 %. GEMV: 4-8x over Cerebras's, about 4.6x end to end; communication
    can be 90 % of the total.
    """

    name: str
    section: str
    text: str
    low: float | None = None
    high: float | None = None

    def stated(self) -> str:
        """The bounds, for a table."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"
        return f"above {self.low:g}" if self.low is not None else f"below {self.high:g}"


GEMM_SIZES = {"2K": 2048, "4K": 4096, "8K": 8192}
GEMV_SIZES = {"2K": 2048, "8K": 8192, "16K": 16384}
SIDES = (180, 360, 540, 720)

GEMM_SPEEDUP = Claim("speedup", "1", "MeshGEMM 2-3x faster", 2.0, 3.0)
GEMM_LARGE = Claim("cycles saved", "7.2", "cycles saved when large", 0.17, 0.17)
GEMM_EFFICIENCY = Claim("efficiency", "7.2", "MeshGEMM efficient", 0.70)
GEMM_OTHERS = Claim("efficiency", "7.2", "the others are not", None, 0.50)
GEMV_SPEEDUP = Claim("speedup", "1", "MeshGEMV 4-8x faster", 4.0, 8.0)
GEMV_END_TO_END = Claim("speedup", "7.3", "faster end to end", 4.6, 4.6)
GEMV_COMMUNICATION = Claim("communication", "7.3", "share of communication", 0.90)
