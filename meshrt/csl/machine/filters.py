"""Filters of a router's entry: what they let to its core. SDK documentation, Filter Configuration Semantics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshrt.csl.errors import CslError

COUNTS = ("count_data", "count_control", "init_counter", "limit1", "max_counter")
FIELDS = {
    "range": ("min_idx", "max_idx"),
    "counter": (*COUNTS, "filter_control", "fast_mode"),  # fast_mode: published programs say it, no page what it is
    "sparse_counter": (*COUNTS, "limit2"),
}


@dataclass(slots=True, eq=False)
class DataRange:
    """Of data, by the upper 16 bits."""

    least: int
    most: int

    def passes(self, raw: int, control: bool = False) -> bool:
        return control or self.least <= raw >> 16 <= self.most


@dataclass(slots=True, eq=False)
class Counter:
    """By how many have come: from 0 to `limit` and from 0 again; what finds more than `most` is rejected.

    It counts what would go to the core. A sparse one ends at its limit, or begins once more, with a second limit.
    """

    limit: int
    most: int
    count: int
    data: bool  # is counted
    control: bool
    alone: bool = False  # nothing but a control wavelet that finds `most`
    sparse: bool = False
    second: int | None = None
    ended: bool = False  # lets all go to the core

    def passes(self, raw: int, control: bool = False) -> bool:
        """Does the next wavelet? It is counted."""
        if self.ended:
            return True
        number = self.count
        if self.control if control else self.data:
            self.count += 1
            if number >= self.limit:
                self._begin_again()
        return control and number == self.most if self.alone else number <= self.most

    def _begin_again(self) -> None:
        self.count = 0
        if self.sparse:
            self.ended = self.second is None
            self.limit, self.second = (self.limit if self.second is None else self.second), None


def filter_of(config: dict[str, Any], location: Any) -> DataRange | Counter:
    """What .filter of a colour's configuration says. CslError."""
    kinds = config["kind"].value if "kind" in config else {}
    kind = next(iter(kinds), None)
    if kind not in FIELDS:
        raise CslError(f"{location}: a filter's .kind is one of .{{ .{' = true }, .{ .'.join(FIELDS)} = true }}")
    for name in config:
        if name != "kind" and name not in FIELDS[kind]:
            raise CslError(f"{location}: a filter by {kind} has no .{name}: it has .{', .'.join(FIELDS[kind])}")

    def of(name: str) -> int:
        return int(config[name].value) if name in config else 0

    if kind == "range":
        return DataRange(of("min_idx"), of("max_idx"))
    counter = Counter(
        of("limit1"), of("max_counter"), of("init_counter"), bool(of("count_data")), bool(of("count_control")),
        alone=bool(of("filter_control")), sparse=kind == "sparse_counter",
    )  # fmt: skip
    if counter.sparse:
        counter.second = of("limit2") if "limit2" in config else None
        counter.ended = "limit1" not in config
    return counter
