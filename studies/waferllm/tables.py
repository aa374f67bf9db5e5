"""Tables 2 to 8 of WaferLLM: what each of their cells describes as a run, and what that run says as a number.

A table is a function from an emulation to rows, so that tables share runs.
"""

from collections.abc import Callable

from meshrt.mesh.device import Device
from meshrt.studies.rows import Emulate, PaperRow
from meshrt.studies.waferllm.gpus import table6, table7, table8
from meshrt.studies.waferllm.kvcache import table5
from meshrt.studies.waferllm.models import table2, table3, table4

TABLES: dict[str, Callable[[Device, Emulate], list[PaperRow]]] = {
    "2": table2, "3": table3, "4": table4, "5": table5, "6": table6, "7": table7, "8": table8,
}  # fmt: skip
