"""What differs between two reports, or any two JSON files of meshrt's: settings, and numbers with their ratio."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from math import inf
from typing import Any

from meshrt.errors import UsageError, nearest
from meshrt.studies.grid import shown

SETTINGS = ("schema", "machine", "program", "arguments", "device", "mesh")  # of a report: what was asked for
LEFT_OUT = ("host", "kinds")  # of the computers, and labels
ABSENT = "absent"


@dataclass(frozen=True)
class Difference:
    """One place of two documents. `change`: (after - before) / before, of two numbers; None of what is none."""

    path: str
    before: Any
    after: Any
    change: float | None


def differences(
    before: Any, after: Any, only: Sequence[str] = (), left_out: Sequence[str] = LEFT_OUT
) -> list[Difference]:
    """Where two documents differ, in the order of the first; with `only` paths that one of its patterns fits.

    Phases, and whatever else has a name, are compared with those of that name, the rest of lists place by place.
    """
    old, new = (dict(_leaves(document)) for document in (before, after))
    paths = [path for path in old | new if path.split(".")[0] not in left_out]
    return [
        Difference(path, old.get(path, ABSENT), new.get(path, ABSENT), _change(old.get(path), new.get(path)))
        for path in paths
        if (not only or any(fnmatch(path, pattern) for pattern in only)) and _differ(old, new, path)
    ]


def check_patterns(before: Any, after: Any, only: Sequence[str], left_out: Sequence[str] = LEFT_OUT) -> None:
    """UsageError for a pattern that fits no path of either document: what it was to guard would go unseen."""
    paths = list(dict.fromkeys(path for document in (before, after) for path, _ in _leaves(document)))
    looked_at = [path for path in paths if path.split(".")[0] not in left_out]
    for pattern in only:
        if any(fnmatch(path, pattern) for path in looked_at):
            continue
        ends = [path for path in looked_at if path.endswith(f".{pattern}")]
        hint = nearest(pattern, looked_at, "a pattern is of a whole path, such as measured.hops or *hops")
        if any(fnmatch(path, pattern) for path in paths):
            hint = f"{' and '.join(left_out)} are left out, of which --host adds the first"
        elif ends:
            hint = f"a pattern is of a whole path: did you mean {' or '.join([*ends[:3], f'*.{pattern}'])}?"
        raise UsageError(f"--only {pattern!r} fits nothing in these files: {hint}")


def is_setting(path: str) -> bool:
    """Is it what was asked for, and not what came of it?"""
    return path.split(".")[0] in SETTINGS


def above(differences: Sequence[Difference], share: float) -> list[str]:
    """Of what was measured, what changed by more than a share of what it was, up or down, a line each."""
    return [
        f"{diff.path} was {shown(diff.before)} and is {shown(diff.after)}: {percent(diff.change)}"
        for diff in differences
        # `not <=`: a number that has become NaN is no share of anything
        if not is_setting(diff.path) and (diff.change is None or not abs(diff.change) <= share)
    ]


def as_json(differences: Sequence[Difference]) -> dict[str, Any]:
    """Settings and numbers apart; a change from nothing has no number that JSON knows."""
    rows = [asdict(diff) | ({"change": None} if diff.change in (inf, -inf) else {}) for diff in differences]
    return {
        "settings": [row for row in rows if is_setting(row["path"])],
        "results": [row for row in rows if not is_setting(row["path"])],
    }


def percent(change: float | None) -> str:
    """A change as a table has it."""
    if change is None:
        return ""
    return "from nothing" if change in (inf, -inf) else f"{100 * change:+.3g} %"


def _change(before: Any, after: Any) -> float | None:
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (before, after)):
        return None
    return (after - before) / abs(before) if before else inf if after > 0 else -inf


def _differ(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> bool:
    present = path in old, path in new
    if present == (True, True) and old[path] != old[path] and new[path] != new[path]:  # NaN, and still NaN
        return False
    return present != (True, True) or type(old[path]) is bool is not type(new[path]) or old[path] != new[path]


def _leaves(part: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What is not itself made of parts, each with its path."""
    if isinstance(part, Mapping) and part:
        for key, value in part.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(part, list) and part:
        seen: Counter[str] = Counter()
        for at, value in enumerate(part):
            name = str(value["name"]) if isinstance(value, Mapping) and "name" in value else str(at)
            seen[name] += 1
            again = f"#{seen[name]}" if seen[name] > 1 else ""
            yield from _leaves(value, f"{path}.{name}{again}" if path else name + again)
    else:
        yield path, part
