"""A device by its name, or a user's own: a TOML file with the keys of `Device`.

`meshrt devices NAME --toml` writes one to begin from.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from math import isfinite
from types import NoneType
from typing import Any, get_args, get_type_hints

from meshrt.errors import UsageError, nearest
from meshrt.mesh.device import ENERGY, Device
from meshrt.mesh.presets import PRESETS

# Keys that say nothing without one of others, as the device asks for those first.
WITH = {
    "adds_per_cycle_16": ("adds_per_cycle",), "chunk_cycles": ("macs_per_cycle", "macs_per_cycle_16", "adds_per_cycle"),
    "chunk_cycles_16": ("chunk_cycles",), "matrix_passes": ("matrix_unit",), "die_cycles": ("die_rows",),
    "die_rows": ("die_cycles",),
}  # fmt: skip
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def find_device(name: str | Device, **overrides: int | None) -> Device:
    """A preset by its name, a FILE.toml, or a device itself; numbers replaced, but for those of None. UsageError."""
    if isinstance(name, Device):
        device = name
    elif name.endswith(".toml"):
        device = read_device(name)
    elif name in PRESETS:
        device = PRESETS[name]
    else:
        hint = nearest(name, PRESETS, f"there are {', '.join(PRESETS)}")
        raise UsageError(f"no device {name!r}, nor a file as mine.toml: {hint}")
    return replace(device, **{key: value for key, value in overrides.items() if value is not None})  # type: ignore[arg-type]  # by name


def read_device(path: str) -> Device:
    """The device of a file. A key that is left out has the default of `Device`: no limit, no cost. UsageError."""
    import tomllib  # most runs are on a preset

    try:
        with open(path, "rb") as stream:
            numbers = tomllib.load(stream)
    except OSError as error:
        raise UsageError(f"--device {path} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--device {path} is no TOML: {error}") from error
    kinds = get_type_hints(Device)
    if "name" not in numbers:
        raise UsageError(f'--device {path}: it has no name; write name = "mine"')
    device = Device(**{key: _checked(path, key, value, kinds) for key, value in numbers.items()})
    defaults = {field.name: field.default for field in fields(Device)}
    given = {key for key in kinds if getattr(device, key) != defaults[key]}
    for key, others in WITH.items():
        if key == "chunk_cycles" and device.chunk_cycles == 0:
            continue  # no cost, as without
        if key in given and not given.intersection(others):
            wanted = " or ".join(others)
            raise UsageError(f"--device {path}: {key} is nothing without {wanted}: give both, or leave it away")
    return device


def _checked(path: str, key: str, value: Any, kinds: Mapping[str, Any]) -> Any:
    where = f"--device {path}: {key}"
    if key not in kinds:
        raise UsageError(f"{where} is no key of a device; there are {', '.join(kinds)}")
    if key == "sources":
        if not isinstance(value, list) or not all(isinstance(source, str) for source in value):
            raise UsageError(f"{where} is a list of texts")
        return tuple(value)
    if key == "matrix_unit":
        if not isinstance(value, list) or len(value) != 3 or any(type(side) is not int or side < 1 for side in value):
            raise UsageError(f"{where} is {json.dumps(value, default=str)}; it is three whole numbers of 1 or more")
        return tuple(value)
    if key in ENERGY:
        if not isinstance(value, list) or len(value) != 2 or any(type(bound) not in (int, float) for bound in value):
            raise UsageError(f"{where} is {json.dumps(value, default=str)}; it is the lowest and the highest: [1, 2]")
        return (float(value[0]), float(value[1]))
    (kind,) = [part for part in get_args(kinds[key]) or (kinds[key],) if part is not NoneType]
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits or (kind is float and not isfinite(value)):
        raise UsageError(f"{where} is {json.dumps(value, default=str)}; it is {WORDS[kind]}")
    if key == "name" and not value.strip():
        raise UsageError(f'{where} is empty; write name = "mine"')
    return float(value) if kind is float else value


def as_toml(device: Device) -> str:
    """The file that `read_device` makes this device of. A key without a value stands in a comment."""
    lines = [
        f"# A device for --device FILE.toml; it began as {_written(device.name)[1:-1]}. A key that is left out is no"
        " limit, or no cost; but alpha is 1, clock_hz 1e9, adds_per_cycle is macs_per_cycle, and what is for 16 bits is"
        " as for 32."
    ]
    for field in fields(device):
        value = getattr(device, field.name)
        if field.name == "sources":
            lines += ["sources = [", *(f"    {_written(source)}," for source in value), "]"]
        else:
            lines.append(f"# {field.name} = " if value is None else f"{field.name} = {_written(value)}")
    return "\n".join(lines) + "\n"


def _written(value: Any) -> str:
    """A value as TOML has it: JSON's words, but for characters that JSON writes as two or leaves as they are."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
