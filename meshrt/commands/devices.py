"""`meshrt devices`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click

from meshrt.commands import shared
from meshrt.errors import UsageError, nearest
from meshrt.machine import find_machine, machines
from meshrt.mesh.devicefile import as_toml, find_device
from meshrt.mesh.presets import PRESETS
from meshrt.ranks.failing import failure


@click.command("devices")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--toml", is_flag=True, help="Write that of a mesh as a file for --device FILE.toml, to begin from.")
@shared.form()
def command(names: tuple[str, ...], toml: bool, form: str) -> None:
    """The machines that there are: their numbers and where those are from. NAME also is a FILE.toml of your own.

    \b
    meshrt devices wse3 --toml > mine.toml         then change it, and
    meshrt run gemm --device mine.toml
    """
    presets = {name: device for machine in machines() for name, device in find_machine(machine).PRESETS.items()}
    if toml:
        sys.exit(failure.report_alone(error) if (error := _write_toml(names, presets)) else 0)
    devices = []
    try:
        for name in names or presets:
            if name not in presets and not name.endswith(".toml"):
                hint = nearest(name, presets, f"there are {', '.join(presets)}")
                raise UsageError(f"no device {name!r}, nor a file as mine.toml: {hint}")
            devices.append(presets[name] if name in presets else find_device(name))
    except UsageError as error:
        sys.exit(failure.report_alone(error))
    from meshrt.studies.grid import Grid, put

    if form == "table":
        put(line for device in devices for line in _lines(device))
    else:
        rows = [[device.name, *row] for device in devices for row in _numbers(device)]
        put([Grid(["device", "number", "value"], rows)], form)


def _lines(device: Any) -> Iterator[str]:
    """A device as a person reads it."""
    yield device.name
    for name, value in _numbers(device):
        if name == "source":
            yield f"  source: {value}"
        elif (path := name.rpartition("."))[1]:
            if path[2] == "cores":
                yield f"  {value} x {path[0].removeprefix('clusters.')}"
            else:
                yield f"    {path[2]:21} {value}"
        else:
            yield f"  {name:23} {'no limit' if value is None else value}"


def _numbers(device: Any) -> Iterator[tuple[str, Any]]:
    """Its numbers by name, as texts where they are several; then its sources."""
    numbers = asdict(device)
    sources = numbers.pop("sources")
    del numbers["name"]
    for key, value in numbers.items():
        if key == "clusters":
            for cluster in value:
                name = cluster.pop("name")
                for each in ("cores", *(field for field in cluster if field != "cores")):
                    yield f"clusters.{name}.{each}", cluster[each]
            continue
        if key in ("isa", "matrix_unit") and value is not None:
            value = ", ".join(map(str, value))
        elif key.endswith(("_picojoules", "_picojoules_16", "_watts")):
            value = "not counted" if value is None else "{:g} to {:g}".format(*value)
        elif isinstance(value, tuple):  # of protocols
            texts = ("{name} {seconds} s and {step_seconds} s a step, {share:.0%} of the rate".format(**entry)
                     for entry in value)  # fmt: skip
            value = "; ".join(texts)
        yield key, value
    for source in sources:
        yield "source", source


def _write_toml(names: tuple[str, ...], presets: Mapping[str, Any]) -> UsageError | None:
    """The file of one device of a mesh, on standard output; or what is wrong with its name, among those of all."""
    if len(names) != 1:
        return UsageError(f"--toml writes one device: name it, one of {', '.join(PRESETS)}")
    if names[0] in presets and names[0] not in PRESETS:
        meshes = ", ".join(PRESETS)
        return UsageError(
            f"--toml is for meshes ({meshes}), and {names[0]} is none: no other machine is read from a file"
        )
    try:
        click.echo(as_toml(find_device(names[0])), nl=False)
    except UsageError as error:
        return error
    return None
