"""What is quantized of the packaged mixtures for each of MiLo's tables and figures, by what a line is called.

Ranks are small as the models are: Dense-512 of Mixtral is an eighth of its hidden size, as Dense-16 is here, and what
would be less than rank 1 there is rank 1 or more here. Table 4's three policies get the same bytes, which the paper's
have only nearly: as many as leave rank 2 to all matrices.
"""

from meshrt.studies.milo.quality import Recipe

TINY = {"mixtral-tiny": "mixtral-8x7b", "deepseek-tiny": "deepseek-moe-16b"}  # and the published model of its kind
BUDGET = {"mixtral-tiny": 23 << 10, "deepseek-tiny": 28 << 10}
STRATEGIES = {
    "mixtral-tiny": {"MiLo-s1": "dense-16+kurtosis-1", "MiLo-s2": "dense-32+kurtosis-2"},
    "deepseek-tiny": {"MiLo-s1": "dense-48", "MiLo-s2": "dense-64+frequency-2"},
}
DENSE, SPARSE = 16, 4  # ranks of Table 4's right half
TABLE6_RANKS, FIGURE11_RANKS, FIGURE7_RANK = (4, 8, 16), (2, 4, 8, 16, 32), 16

Recipes = dict[str, Recipe]


def table1(model: str) -> Recipes:
    recipes = {f"{method.upper()}, {bits} bits": Recipe(model, method, bits=bits)
             for method in ("rtn", "gptq") for bits in (4, 3)}  # fmt: skip
    return {"fp16": Recipe(model, "fp16"), **recipes}


def table2(model: str) -> Recipes:
    return {"HQQ": Recipe(model, "hqq")}


def table3(model: str) -> Recipes:
    plain = {method.upper(): Recipe(model, method) for method in ("rtn", "gptq", "hqq")}
    milo = {name: Recipe(model, "milo", ranks) for name, ranks in STRATEGIES[model].items()}
    return {"fp16": Recipe(model, "fp16"), **plain, **milo}


def table4(model: str) -> Recipes:
    """One round, as section 4.2 has it; frequency-kurtosis is ours."""
    single = {kind: Recipe(model, "milo", kind, BUDGET[model], rounds=1) for kind in ("uniform", "dense", "sparse")}
    both = {
        f"dense-{DENSE}+{kind}-{SPARSE}": Recipe(model, "milo", f"dense-{DENSE}+{kind}-{SPARSE}", rounds=1)
        for kind in ("sparse", "kurtosis", "frequency", "frequency-kurtosis")
    }
    return {"fp16": Recipe(model, "fp16"), "HQQ": Recipe(model, "hqq"), **single, **both}


def table6(model: str) -> Recipes:
    recipes = {
        f"rank {rank}, {bits} bits": Recipe(model, "milo", f"uniform-{rank}", compensator_bits=bits)
        for rank in TABLE6_RANKS
        for bits in (16, 8, 3)
    }
    return {"fp16": Recipe(model, "fp16"), **recipes}


def figure5(model: str) -> Recipes:
    return {"RTN": Recipe(model, "rtn"), "HQQ": Recipe(model, "hqq")}


def figure7(model: str) -> Recipes:
    return {f"rank {FIGURE7_RANK}": Recipe(model, "milo", f"uniform-{FIGURE7_RANK}", compensator_bits=16)}


def figure8(model: str) -> Recipes:
    plain = {method.upper(): Recipe(model, method) for method in ("rtn", "hqq", "gptq")}
    return {"fp16": Recipe(model, "fp16"), **plain, "MiLo-s1": Recipe(model, "milo", STRATEGIES[model]["MiLo-s1"])}


def figure11(model: str) -> Recipes:
    ranks = {f"rank {rank}": Recipe(model, "milo", f"uniform-{rank}") for rank in FIGURE11_RANKS}
    return {"fp16": Recipe(model, "fp16"), "HQQ": Recipe(model, "hqq"), **ranks}


RECIPES = {
    "1": table1, "2": table2, "3": table3, "4": table4, "6": table6, "8": table4,
    "figure5": figure5, "figure7": figure7, "figure8": figure8, "figure11": figure11,
}  # fmt: skip
