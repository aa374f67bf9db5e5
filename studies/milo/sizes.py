"""MiLo's sizes, of the published models by shape: Tables 3 to 6, exactly, from `meshrt quantize --sizes`'s formulas."""

from functools import cache

from meshrt.models.catalogue import find_model
from meshrt.models.quantize.choice import choose
from meshrt.models.quantize.shapes import Shapes, read_shapes
from meshrt.models.quantize.sizes import CodeScheme, sizes
from meshrt.studies.milo.published import BUDGET_MIB, MODELS, TABLE3, TABLE4, TABLE5, TABLE6
from meshrt.studies.rows import PaperRow

GIB, MIB = 2**30, 2**20
BY_AVERAGE = "ranks by their average, as they depend on the weights; experts have one m + n"


@cache
def shapes_of(model: str) -> Shapes:
    return read_shapes(find_model(model))


def table3() -> list[PaperRow]:
    """GiB of the whole model as the paper stores it, and as our folders do, without a wasted bit."""
    rows = []
    for model, methods in TABLE3.items():
        shapes = shapes_of(model)
        for system, quality in methods.items():
            policy = TABLE5[model].get(system)
            scheme = CodeScheme(system.lower().partition("-")[0], 3, 64, False, 3 if policy else 16)
            size = sizes(shapes, scheme, choose(shapes, scheme, policy, None, None)[0] if policy else {})
            note = BY_AVERAGE if policy and ("kurtosis" in policy or "frequency" in policy) else ""
            as_published, ours = size["published_bytes"] / GIB, size["bytes"] / GIB
            rows.append(PaperRow("3", MODELS[model], system, "memory", "GiB", quality.gib, as_published, note=note))
            rows.append(PaperRow("3", MODELS[model], system, "memory, no bit wasted", "GiB", None, ours, note=note))
    return rows


def table4() -> list[PaperRow]:
    """MiB of the compensators of the three policies that are to take 200 at most."""
    return [
        PaperRow(
            "4", MODELS[model], policy, "compensators, at most", "MiB", BUDGET_MIB, _compensators(model, policy, 3)[0]
        )
        for model, policies in TABLE4.items()
        for policy in policies
        if "+" not in policy
    ]


def table5() -> list[PaperRow]:
    """MiB of the compensators of Table 3's two policies, and what is larger than its own matrix."""
    rows = []
    for model, systems in TABLE5.items():
        for system, policy in systems.items():
            mib, wide = _compensators(model, policy, 3)
            note = f"{wide} compensators have more numbers than their own matrix" if wide else ""
            rows.append(PaperRow("5", MODELS[model], system, policy, "MiB", None, mib, note=note))
    return rows


def table6() -> list[PaperRow]:
    return [
        PaperRow("6", MODELS["mixtral-8x7b"], f"INT{bits}", f"compensators of rank {rank}", "MiB", mib,
            _compensators("mixtral-8x7b", f"uniform-{rank}", bits)[0])
        for rank, columns in TABLE6.items()
        for bits, (mib, _) in columns.items()
    ]  # fmt: skip


def _compensators(model: str, policy: str, bits: int) -> tuple[float, int]:
    """MiB as published, and how many are larger than their matrix."""
    shapes, scheme = shapes_of(model), CodeScheme("milo", 3, 64, False, bits)
    ranks, facts = choose(shapes, scheme, policy, None, None)
    return sizes(shapes, scheme, ranks)["published_compensator_bytes"] / MIB, len(facts["larger_than_matrix"])
