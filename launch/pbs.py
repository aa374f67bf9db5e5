"""PBS Professional and OpenPBS: the script for qsub, and handing it in."""

from __future__ import annotations

import shlex
from itertools import groupby

from meshrt.launch import shell
from meshrt.launch.batch import BatchJob, clock_time
from meshrt.launch.job import meshrt
from meshrt.launch.local import Mpirun
from meshrt.launch.submit import Submitted, hand_in


def script(batch: BatchJob, mpirun: Mpirun) -> str:
    """The script of `batch`, whose ranks `mpirun` starts on the hosts of PBS's node file. Raises UsageError."""
    shell.check_output(batch, "^array_index^")
    resources = [("select", _select(batch))]
    if batch.on_nodes:
        resources.append(("place", "scatter"))
    if batch.time:
        resources.append(("walltime", clock_time(batch.time)))
    directives = [f"#PBS -N {batch.name}", *(f"#PBS -l {name}={value}" for name, value in resources), "#PBS -j oe"]
    options = {"q": batch.partition, "A": batch.account, "o": batch.output}
    directives += [f"#PBS -{flag} {value}" for flag, value in options.items() if value is not None]
    if batch.restarts:  # PBS's own part: a job that loses a node begins again, on others
        directives.append("#PBS -r y")
    if len(batch.runs) > 1:
        directives.append(f"#PBS -J 0-{len(batch.runs) - 1}")
    before = ['cd "$PBS_O_WORKDIR" || exit 2']  # PBS starts a script in the home directory
    return shell.script(batch, directives, before, "PBS_ARRAY_INDEX", _launcher(batch, mpirun))


def _select(batch: BatchJob) -> str:
    """The chunks: as many cores as ranks unless fewer are asked for; without nodes, a chunk for each rank."""
    if batch.on_nodes is None:
        return f"{batch.ranks}:ncpus=1:mpiprocs=1"
    memory = f":mem={batch.memory}mb" if batch.memory else ""
    groups = ((ranks, len(list(nodes))) for ranks, nodes in groupby(batch.on_nodes))
    return "+".join(
        f"{nodes}:ncpus={min(ranks, batch.cores_per_node or ranks)}:mpiprocs={ranks}{memory}" for ranks, nodes in groups
    )


def _launcher(batch: BatchJob, mpirun: Mpirun) -> str:
    """PBS_NODEFILE has a line for each rank, which `meshrt launch` reads as well."""
    if batch.restarts:
        return f'{shlex.join(meshrt())} launch -n {batch.ranks} --restarts {batch.restarts} --hosts "$PBS_NODEFILE" --'
    options = "--map-by slot --bind-to none --hostfile" if mpirun.is_open_mpi else "-f"
    launcher = f'{shlex.quote(mpirun.path)} -n {batch.ranks} {options} "$PBS_NODEFILE"'
    return f"{launcher} {shlex.join(meshrt())}"


def submit(batch: BatchJob, text: str) -> Submitted:
    """Hand the script in. Raises UsageError if there is no qsub, or it refuses."""
    job = hand_in(["qsub"], text)
    array = ".*" if len(batch.runs) > 1 else ""
    return Submitted(job, batch.output or f"{batch.name}.o{job.split('.')[0].removesuffix('[]')}{array}")
