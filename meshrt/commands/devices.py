"""`meshrt devices`."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from meshrt.arm.device import ARM_PRESETS, ArmDevice
from meshrt.errors import UsageError
from meshrt.gpu.device import GpuDevice
from meshrt.gpu.presets import GPU_PRESETS
from meshrt.mesh.device import Device
from meshrt.mesh.devicefile import as_toml, find_device
from meshrt.mesh.presets import PRESETS
from meshrt.neuron.device import NEURON_PRESETS, NeuronDevice
from meshrt.ranks import failure


@click.command("devices")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--toml", is_flag=True, help="Write that of a mesh as a file for --device FILE.toml, to begin from.")
def command(names: tuple[str, ...], toml: bool) -> None:
    """The machines that there are: their numbers and where those are from. NAME also is a FILE.toml of your own.

    \b
    meshrt devices wse3 --toml > mine.toml         then change it, and
    meshrt run gemm --device mine.toml
    """
    presets: dict[str, Device | NeuronDevice | GpuDevice | ArmDevice]
    presets = {**PRESETS, **NEURON_PRESETS, **GPU_PRESETS, **ARM_PRESETS}
    if toml:
        sys.exit(failure.report_alone(error) if (error := _write_toml(names)) else 0)
    machines = []
    try:
        for name in names or presets:
            machines.append(presets[name] if name in presets else find_device(name))
    except UsageError as error:
        sys.exit(failure.report_alone(error))
    for device in machines:
        numbers = asdict(device)
        sources = numbers.pop("sources")
        click.echo(numbers.pop("name"))
        for key, value in numbers.items():
            if key == "clusters":
                for cluster in value:
                    click.echo(f"  {cluster.pop('cores')} x {cluster.pop('name')}")
                    for name, number in cluster.items():
                        click.echo(f"    {name:21} {number}")
                continue
            if key in ("isa", "matrix_unit") and value is not None:
                value = ", ".join(map(str, value))
            elif key.endswith(("_picojoules", "_picojoules_16", "_watts")):
                value = "not counted" if value is None else "{:g} to {:g}".format(*value)
            elif isinstance(value, tuple):  # of protocols
                texts = ("{name} {seconds} s and {step_seconds} s a step, {share:.0%} of the rate".format(**entry)
                         for entry in value)  # fmt: skip
                value = "; ".join(texts)
            click.echo(f"  {key:23} {'no limit' if value is None else value}")
        for source in sources:
            click.echo(f"  source: {source}")


def _write_toml(names: tuple[str, ...]) -> UsageError | None:
    """The file of one device of a mesh, on standard output; or what is wrong with its name."""
    if len(names) != 1:
        return UsageError(f"--toml writes one device: name it, one of {', '.join(PRESETS)}")
    try:
        click.echo(as_toml(find_device(names[0])), nl=False)
    except UsageError as error:
        return error
    return None
