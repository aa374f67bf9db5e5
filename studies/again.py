"""How a run is repeated, as far as its report says: the command line, and what is to be put into it."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from meshrt.machine import find_machine
from meshrt.program import packaged_programs

FILE, DEVICE = "FILE.py", "FILE.toml"  # in place of names that no report has


def preset_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """The device of that name as it is by itself; empty for one of the user's own."""
    device = find_machine(report["machine"]).PRESETS.get(report["device"]["name"])
    return {} if device is None else asdict(device)


def again(report: Mapping[str, Any]) -> str:
    """The command line of a run, as far as a report has it."""
    machine = find_machine(report["machine"])
    words = ["meshrt", "run", FILE if _is_own(report) else str(report["program"])]
    if report["machine"] != "mesh":
        words += ["--on", str(report["machine"])]
    options, _ = machine.asked(report)
    device = report["device"]["name"] if preset_of(report) else DEVICE if report["machine"] == "mesh" else None
    for key, value in {**report["arguments"], **options, "device": device}.items():
        if value is True:
            words.append(f"--{key.replace('_', '-')}")
        elif value is not None and value is not False:
            words += [f"--{key.replace('_', '-')}", str(value)]
    return shlex.join(words)


def untold(report: Mapping[str, Any]) -> Iterator[str]:
    """What the report does not say and that command line is without, a sentence each."""
    yield "As far as the report says, which knows neither --payload nor files nor what is of the host."
    if _is_own(report):
        yield f"{FILE} stands for the program's own file, that of {report['program']}."
    preset, device = preset_of(report), report["device"]
    _, numbers = find_machine(report["machine"]).asked(report)
    if not preset and report["machine"] == "mesh":
        yield f"{DEVICE} stands for the device's own file, that of {device['name']}."
    elif not preset:
        yield f"The device, {device['name']}, is a script's own, which --device does not know."
    else:
        changed = [key for key, value in device.items() if _plain(preset.get(key, value)) != _plain(value)]
        if others := [key for key in changed if key not in numbers]:
            yield f"No option changes what else is not {device['name']}'s own: {', '.join(others)}."
    if "wafer" in report:
        yield "What of the wafer was dead is not in it: --defects, --spares and --defects-seed are to be added."


def _is_own(report: Mapping[str, Any]) -> bool:
    return report["program"] not in packaged_programs()


def _plain(value: Any) -> Any:
    """As JSON has it, which knows no tuples."""
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return {key: _plain(part) for key, part in value.items()} if isinstance(value, dict) else value
