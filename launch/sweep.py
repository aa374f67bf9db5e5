"""Several runs of one command line: {m} in its arguments stands for one value after the other."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise, product

from meshrt.errors import UsageError

# Options of meshrt's commands that name a file or folder to write.
WRITTEN = (
    "--json", "--html", "--maps", "--trace", "--goal", "--chakra", "--logits", "--checkpoint", "--out", "--to", "--png",
    "--csv", "--plot", "--dump", "--outputs",
)  # fmt: skip
MOST_RUNS = 1000  # Slurm refuses larger arrays unless its MaxArraySize (1001) was raised


def parse_axis(text: str) -> tuple[str, tuple[str, ...]]:
    """Turns "m=128,256" into ("m", ("128", "256")). Raises UsageError."""
    name, equals, values = text.partition("=")
    choices = tuple(values.split(","))
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name) or not all(choices):
        raise UsageError(f"sweep {text!r}: give a name and its values, such as m=128,256,512")
    if twice := [value for value, times in Counter(choices).items() if times > 1]:
        raise UsageError(f"sweep {text!r}: {twice[0]} is there twice")
    return name, choices


def expand(arguments: tuple[str, ...], axes: list[tuple[str, tuple[str, ...]]]) -> tuple[tuple[str, ...], ...]:
    """The arguments of every run, the last axis changing fastest; without axes the one run that there is.

    Raises UsageError for a name that no argument has, for too many runs, and where two would write the same file.
    """
    names = [name for name, _ in axes]
    if len(set(names)) < len(names):
        raise UsageError(f"sweeps over {', '.join(names)}: each name may be there once")
    for name in names:
        if not any(f"{{{name}}}" in argument for argument in arguments):
            raise UsageError(
                f"sweep over {name}: no {{{name}}} in the arguments; write it where the value belongs, such as "
                f"--{name} {{{name}}} --json out-{{{name}}}.json"
            )
    combinations = list(product(*(values for _, values in axes)))
    if len(combinations) > MOST_RUNS:
        raise UsageError(f"{len(combinations)} runs: at most {MOST_RUNS} make one array, split the sweep")
    runs = tuple(_filled(arguments, dict(zip(names, values, strict=True))) for values in combinations)
    targets = Counter(target for run in runs for target in _targets(run))
    if twice := [target for target, times in targets.items() if times > 1]:
        flag, path = twice[0]
        templates = [template for option, template in _targets(arguments) if option == flag]
        absent = [name for name in names if not any(f"{{{name}}}" in template for template in templates)] or names
        raise UsageError(
            f"{targets[twice[0]]} runs would write {path}: put {{{absent[0]}}} into the name given to {flag}"
        )
    return runs


def _filled(arguments: tuple[str, ...], values: dict[str, str]) -> tuple[str, ...]:
    """All names at once, so that a value is never taken for a name."""
    if not values:
        return arguments
    pattern = re.compile("|".join(rf"\{{{name}\}}" for name in values))
    return tuple(pattern.sub(lambda match: values[match[0][1:-1]], argument) for argument in arguments)


def _targets(arguments: tuple[str, ...]) -> list[tuple[str, str]]:
    """The files and folders that one run writes, each with its option."""
    pairs = [*pairwise(arguments), *(argument.partition("=")[::2] for argument in arguments)]
    return sorted({(flag, path) for flag, path in pairs if flag in WRITTEN and path not in ("", "-")})
