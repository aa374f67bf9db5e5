"""What a cell of Tables 2 to 8 becomes: a row, published beside emulated."""

from collections.abc import Iterator

from meshrt.studies.rows import PaperRow
from meshrt.studies.waferllm import published
from meshrt.studies.waferllm.published import PublishedCell

INFERRED = "inferred from the tables, so no prediction"
DTYPE = "float16"  # of the published programs, which keep everything in it


def cell_row(
    cell: PublishedCell, value: float | None, cycles: float | None, note: str, memory: int | None = None
) -> PaperRow:
    """A cell beside what was emulated of it. Of a baseline that was read off the tables, its note says so."""
    if cell.system in published.INFERRED and value is not None:
        note = "; ".join(filter(None, (INFERRED, note)))
    return PaperRow(
        str(cell.table), cell.model, cell.system, cell.column, cell.unit, cell.value, value, cycles, memory, note
    )


def beside(cell: PublishedCell) -> PaperRow:
    """A row of GPUs: published context."""
    return PaperRow(str(cell.table), cell.model, cell.system, cell.column, cell.unit, cell.value)


def wafer(number: int) -> Iterator[PublishedCell]:
    """Those of a WSE-2."""
    return (cell for cell in published.table(number) if cell.system != "a100")


def gpus(number: int) -> list[PaperRow]:
    """Those of GPUs: published context."""
    return [beside(cell) for cell in published.table(number) if cell.system == "a100"]
