"""Slurm: the script for sbatch, and handing it in."""

from __future__ import annotations

import shlex

from meshrt.launch import shell
from meshrt.launch.batch import BatchJob, clock_time
from meshrt.launch.job import meshrt
from meshrt.launch.restarts import module
from meshrt.launch.submit import Submitted, hand_in


def script(batch: BatchJob, library: str) -> str:
    """The script of `batch` for ranks of the MPI `library`, as host.library() words it. Raises UsageError.

    srun starts the ranks, not mpirun, so that Slurm counts, signals and ends them. With more ranks than cores Slurm
    is asked for the cores only: sbatch's own --overcommit would get one core of each node.
    """
    shell.check_output(batch, "%a")
    spread = batch.on_nodes
    crowded = spread is not None and batch.cores_per_node is not None
    options = {
        "job-name": batch.name,
        "nodes": len(spread) if spread else None,
        "ntasks": None if crowded else batch.ranks,
        "ntasks-per-node": batch.cores_per_node if crowded else batch.ranks_per_node,
        "mem": f"{batch.memory}M" if batch.memory else None,
        "time": clock_time(batch.time) if batch.time else None,
        "partition": batch.partition,
        "account": batch.account,
        "output": output(batch),
        "array": f"0-{len(batch.runs) - 1}" if len(batch.runs) > 1 else None,
    }
    directives = [f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None]
    if batch.restarts:  # Slurm's own part: a job that loses a node begins again, on others
        directives += ["#SBATCH --requeue", "#SBATCH --open-mode=append"]
    launcher = f"srun --mpi={process_interface(library)} --kill-on-bad-exit=1 --ntasks={batch.ranks}"
    if crowded and spread:
        launcher += f" --ntasks-per-node={spread[0]} --overcommit"
    if batch.restarts:
        launcher = f"{shlex.join(module())} {batch.restarts} {launcher}"
    return shell.script(batch, directives, [], "SLURM_ARRAY_TASK_ID", f"{launcher} {shlex.join(meshrt())}")


def process_interface(library: str) -> str:
    """By what the library's ranks learn from srun who they are: Open MPI 5 knows PMIx only, MPICH's wheel PMI."""
    return "pmix" if library.startswith("Open MPI") else "pmi2"


def output(batch: BatchJob) -> str:
    """Where the ranks' output goes, in Slurm's own notation: %j is the job, %A and %a are array and index."""
    return batch.output or f"{batch.name}-{'%A_%a' if len(batch.runs) > 1 else '%j'}.out"


def submit(batch: BatchJob, text: str) -> Submitted:
    """Hand the script in. Raises UsageError if there is no sbatch, or it refuses."""
    number = hand_in(["sbatch", "--parsable"], text).split(";")[0]  # then comes the cluster's name
    path = output(batch)
    for mark in ("%j", "%A"):
        path = path.replace(mark, number)
    return Submitted(number, path.replace("%a", "*"))
