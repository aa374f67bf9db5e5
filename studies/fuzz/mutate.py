"""Inputs that are nearly right: values at and beyond all limits, put into JSON and bytes that were valid."""

import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

INTEGERS = (0, 1, -1, 2, 3, 7, 255, 2**16, 2**24, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30)
VALUES: tuple[Any, ...] = (
    *INTEGERS, 10**400, None, True, False, 0.0, -0.0, 0.5, 1e-320, 1e18, 1e308, float("nan"), float("inf"),
    float("-inf"), "", "a", "\0", "\n", "\x1b[2J", "\ud800", "\U0001f600", "..", "../x", "/etc/passwd", "x" * 5000, [],
    {}, [[]], [0], {"": 0}, [None] * 50,
)  # fmt: skip


def mutated_json(rng: Random, data: Any) -> bytes:
    """The text of a JSON value after a few changes: of values, of keys, of the text, of its bytes."""
    data = deepcopy(data)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        data = _change(rng, data)
    text = json.dumps(data)
    if rng.random() < 0.1:
        text = rng.choice(TEXTS)(rng, text)
    encoded = text.encode("utf-8", "surrogatepass")
    return mutated_bytes(rng, encoded) if rng.random() < 0.2 else encoded


def _change(rng: Random, data: Any) -> Any:
    """One change at one place, anywhere in the tree."""
    leaves: list[tuple[Any, Any]] = []
    branches = [data]
    while branches:
        branch = branches.pop()
        keys = list(branch) if isinstance(branch, dict) else range(len(branch)) if isinstance(branch, list) else []
        leaves += [(branch, key) for key in keys]
        branches += [branch[key] for key in keys]
    if not leaves or rng.random() < 0.02:
        return deepcopy(rng.choice(VALUES))
    branch, key = rng.choice(leaves)
    match rng.randrange(6):
        case 0 if isinstance(branch, dict):
            del branch[key]
        case 1 if isinstance(branch, dict):
            branch[rng.choice((key + "x", "", "__metadata__", "a" * 300))] = branch.pop(key)
        case 2:
            other, at = rng.choice(leaves)
            branch[key] = deepcopy(other[at])
        case 3 if isinstance(branch[key], int) and not isinstance(branch[key], bool):
            branch[key] += rng.choice((1, -1, 8, -8, 2**32))
        case _:
            branch[key] = deepcopy(rng.choice(VALUES))
    return data


def _twice(rng: Random, text: str) -> str:
    """The first pair of the outermost object once more."""
    return text.replace("{", "{" + text[1:].split(",")[0] + ",", 1) if text.startswith("{") else text


def _deep(rng: Random, text: str) -> str:
    depth = rng.choice((10, 500, 5000, 100_000))
    return rng.choice(("[" * depth, '{"a":' * depth, "[" * depth + text + "]" * depth))


TEXTS: tuple[Callable[[Random, str], str], ...] = (
    _twice,
    _deep,
    lambda rng, text: text.replace(":", ": NaN,", 1),
    lambda rng, text: "\ufeff" + text,
    lambda rng, text: text.replace("1", "9" * 5000, 1),
    lambda rng, text: text + text,
)


def mutated_bytes(rng: Random, data: bytes) -> bytes:
    """A few bytes changed, left out, put in, repeated, or the end cut off."""
    mutated = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(mutated) + 1)
        match rng.randrange(6):
            case 0 if at < len(mutated):
                mutated[at] ^= 1 << rng.randrange(8)
            case 1:
                del mutated[at : at + rng.choice((1, 2, 8, 100))]
            case 2:
                mutated[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
            case 3:
                mutated[at:at] = mutated[at : at + rng.choice((1, 8, 100))]
            case 4:
                del mutated[at:]
            case _:
                mutated[at : at + 8] = rng.choice(INTEGERS).to_bytes(16, "little", signed=True)[:8]
    return bytes(mutated)
