"""`meshrt devices`."""

from __future__ import annotations

from dataclasses import asdict

import click

from meshrt.arm.device import ARM_PRESETS, ArmDevice
from meshrt.gpu.device import GPU_PRESETS, GpuDevice
from meshrt.mesh.device import PRESETS, Device
from meshrt.neuron.device import NEURON_PRESETS, NeuronDevice


@click.command("devices")
def command() -> None:
    """The machines that there are: their numbers and where those are from."""
    machines: list[Device | NeuronDevice | GpuDevice | ArmDevice]
    machines = [*PRESETS.values(), *NEURON_PRESETS.values(), *GPU_PRESETS.values(), *ARM_PRESETS.values()]
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
            if key == "isa":
                value = ", ".join(value)
            elif isinstance(value, tuple):  # of protocols
                texts = ("{name} {seconds} s and {step_seconds} s a step, {share:.0%} of the rate".format(**entry)
                         for entry in value)  # fmt: skip
                value = "; ".join(texts)
            click.echo(f"  {key:23} {'no limit' if value is None else value}")
        for source in sources:
            click.echo(f"  source: {source}")
