"""What the paper says of its tables and figures, and whether the packaged mixtures and the formulas bear it out.

Of two perplexities the difference in nats a token counts, paired over stories: an order holds where it is at least two
standard errors, does not where it is as much the other way, and is left open between.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

from meshrt.studies.milo import published, rooflines, stripes
from meshrt.studies.milo.lines import correlations, kinds, rounds
from meshrt.studies.milo.quality import RecipeOutcome
from meshrt.studies.milo.recipes import DENSE, FIGURE11_RANKS, SPARSE, TABLE6_RANKS
from meshrt.studies.rows import Finding

SIGNIFICANT = 2.0  # standard errors

All = Mapping[str, RecipeOutcome]


def worse(where: str, model: str, outcomes: All, much: str, little: str) -> Finding:
    """That `much` loses more than `little`."""
    nats, error = outcomes[much].more_than(outcomes[little])
    holds = None if abs(nats) < SIGNIFICANT * error or not error else nats > 0
    return Finding(
        where, model, f"{much} loses more than {little}", f"{1e3 * nats:+.2f} +- {1e3 * error:.2f} mnats", holds
    )


def table1(model: str, outcomes: All) -> list[Finding]:
    return [worse("Table 1", model, outcomes, f"{name}, 3 bits", f"{name}, 4 bits") for name in ("RTN", "GPTQ")] + [
        worse("Table 1", model, outcomes, f"RTN, {bits} bits", f"GPTQ, {bits} bits") for bits in (3, 4)
    ]


def table2(model: str, outcomes: All) -> list[Finding]:
    """Dense matrices have the heavier tails, and a smaller "rank" of the residual: here its share of the shorter side,
    as that is not the same for all."""
    by_kind = {line.system: line.values for line in kinds("2", model, outcomes)}
    claims = []
    for key, says in (("kurtosis", "has more kurtosis than"), ("share_below_half", "has a smaller residual rank than")):
        dense, sparse = (float(by_kind[kind][key] or 0) for kind in ("attention", "expert"))
        holds = dense > sparse if key == "kurtosis" else dense < sparse
        claims.append(Finding("Table 2", model, f"attention {says} experts", f"{dense:.4g}, {sparse:.4g}", holds))
    return claims


def table3(model: str, outcomes: All) -> list[Finding]:
    order = ("RTN", "HQQ", "MiLo-s1", "MiLo-s2")
    return [worse("Table 3", model, outcomes, *pair) for pair in pairwise(order)] + [
        worse("Table 3", model, outcomes, "GPTQ", "HQQ")
        if model.startswith("mixtral")
        else worse("Table 3", model, outcomes, "HQQ", "GPTQ"),
        worse("Table 3", model, outcomes, "GPTQ", "MiLo-s1"),
    ]


def table4(model: str, outcomes: All) -> list[Finding]:
    with_dense = {kind: f"dense-{DENSE}+{kind}-{SPARSE}" for kind in ("sparse", "kurtosis", "frequency")}
    return [
        worse("Table 4", model, outcomes, "HQQ", "sparse"),
        worse("Table 4", model, outcomes, "sparse", "uniform"),
        worse("Table 4", model, outcomes, "uniform", "dense"),
        worse("Table 4", model, outcomes, with_dense["sparse"], with_dense["kurtosis"]),
        worse("Table 4", model, outcomes, with_dense["sparse"], with_dense["frequency"])
        if model.startswith("deepseek")
        else worse("Table 4", model, outcomes, with_dense["frequency"], with_dense["sparse"]),
        worse("Table 4", model, outcomes, with_dense["frequency"], with_dense["kurtosis"]),
    ]


def table6(model: str, outcomes: All) -> list[Finding]:
    claims = []
    for rank in TABLE6_RANKS:
        claims.append(worse("Table 6", model, outcomes, f"rank {rank}, 3 bits", f"rank {rank}, 8 bits"))
        three, eight = (outcomes[f"rank {rank}, {bits} bits"].perplexity for bits in (3, 8))
        says = "3 bits cost no more than 0.16 to 0.27 % of perplexity against 8"
        claims.append(Finding("Table 6", model, f"{says}, rank {rank}", f"{100 * (three / eight - 1):+.3f} %",
                            three / eight - 1 < 0.0028))  # fmt: skip
    return claims


def figure5(model: str, outcomes: All) -> list[Finding]:
    return [
        Finding("Figure 5", model, f"the error of {line.system} grows with kurtosis",
              f"correlation {line.values['correlation']:.3f}", float(line.values["correlation"] or 0) > 0)
        for line in correlations("figure5", model, outcomes)
    ]  # fmt: skip


def figure7(model: str, outcomes: All) -> list[Finding]:
    claims = []
    for line in rounds("figure7", model, outcomes):
        values = {key: float(value or 0) for key, value in line.values.items()}
        gain = values["first"] - values["least"]
        at_10 = (values["first"] - values["by_10"]) / gain if gain else 1.0
        claims += [
            Finding("Figure 7", model, f"the error falls monotonically ({line.system})",
                  f"for {values['monotone']:.0f} of {values['matrices']:.0f} matrices",
                  values["monotone"] == values["matrices"]),
            Finding("Figure 7", model, f"it converges at about 10 rounds ({line.system})",
                  f"{100 * at_10:.0f} % of the gain is there by then", at_10 > 0.9),
        ]  # fmt: skip
    return claims


def figure11(model: str, outcomes: All) -> list[Finding]:
    order = ("HQQ", *(f"rank {rank}" for rank in FIGURE11_RANKS))
    return [worse("Figure 11", model, outcomes, *pair) for pair in pairwise(order)]


OF_MODELS: dict[str, Callable[[str, All], list[Finding]]] = {
    "1": table1, "2": table2, "3": table3, "4": table4, "6": table6,
    "figure5": figure5, "figure7": figure7, "figure11": figure11,
}  # fmt: skip


def by_rooflines(name: str) -> list[Finding]:
    """Of Table 7 and Figure 9: what bytes and operations allow."""
    rows = {"7": rooflines.table7, "figure9": rooflines.figure9}[name]()
    where = "Table 7" if name == "7" else "Figure 9"
    claims = [
        Finding(where, row.subject, f"{row.system} {row.column}: {row.published:.3g} times as fast",
              f"{row.emulated:.3f} at most", row.published <= row.emulated)
        for row in rows
        if row.unit == "x" and row.published is not None and row.emulated is not None
    ]  # fmt: skip
    if name == "7":
        gib = rooflines.shapes_bytes()
        claims.append(Finding(where, "Mixtral-8x7B", "in float16 it does not fit into an A100 of 40 GB",
                            f"{gib:.2f} GiB", gib > rooflines.MEMORY_GIB))  # fmt: skip
    else:
        for form in rooflines.MILO.values():
            first = rooflines.compute_bound_from(form)
            claims.append(Finding(where, "", f"{form.name}: a batch of 32 is compute-bound", f"from {first} on",
                                first <= 32))  # fmt: skip
    return claims


def by_stripes() -> list[Finding]:
    """Sections 3.3 and 4.3.3: other tiles cut down how often thread blocks meet, above all of small matrices."""
    claims, shares = [], []
    for model, shapes in published.TABLE9.items():
        saved = []
        for k, n in shapes:
            wide, *others = (stripes.meetings(k, n, *tiles) for tiles in published.TILES)
            counts = [count for count in others if count is not None]
            saved.append(1 - min(counts) / wide if wide and counts else 0.0)
        claims.append(Finding("Section 3.3", model, "other tiles than 64 x 256 save meetings of thread blocks",
                            " and ".join(f"{share:.1%}" for share in saved), max(saved) > 0))  # fmt: skip
        k, n = shapes[0]
        shares.append(1000 * (stripes.meetings(k, n, 64, 256) or 0) / (k * n / (64 * 256)))
    claims.append(Finding("Section 4.3.3", "", "the larger the matrix, the fewer meetings for its tiles",
                        ", ".join(f"{share:.3g}" for share in shares) + " a thousand tiles",
                        all(b < a for a, b in pairwise(shares))))  # fmt: skip
    return claims
