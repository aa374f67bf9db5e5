"""Typed look-ups in a JSON object, such as that of config.json; what is wrong is said with file and key."""

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from meshrt.models.errors import ModelError
from meshrt.records import dataclass

MAX_SIZE = 1 << 24  # of anything in a model: far above any


@dataclass(frozen=True)
class Keys:
    """Typed look-ups in one JSON object. null counts as absent, as it does for transformers.

    `names` are those that the object has for some keys.
    """

    data: Mapping[str, Any]
    source: str
    prefix: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    def found(self, key: str) -> Any:
        return self.data.get(self.names.get(key, key))

    def has(self, key: str) -> bool:
        return self.found(key) is not None

    def bad(self, key: str, problem: str) -> ModelError:
        return ModelError(f"{self.source}: {self.prefix + self.names.get(key, key)!r} {problem}")

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        if not self.has(key):
            if default is None:
                raise self.bad(key, "is missing")
            return default
        value = self.found(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.bad(key, f"is {value!r}, not of type {kind.__name__}")
        return value

    def size(self, key: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        value: int = self.get(key, int, default)
        if not 0 < value <= most:
            raise self.bad(key, f"is {value}; it must be positive, and {most} at most")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        if not self.has(key) and default is not None:
            return default
        value = self.found(key)
        if value is None:
            raise self.bad(key, "is missing")
        try:
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                return float(value)
        except OverflowError:  # an integer beyond all floats
            pass
        raise self.bad(key, f"is {value!r}, not a finite number")

    def between(self, key: str, least: float, most: float, default: float | None = None) -> float:
        value = self.number(key, default)
        if not least <= value <= most:
            raise self.bad(key, f"is {value}; it must be {least:g} to {most:g}")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of them."""
        value = self.found(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
            raise self.bad(key, f"is {value!r}, not a token id or a list of them")
        return tuple(ids)
