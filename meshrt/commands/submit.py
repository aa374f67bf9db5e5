"""`meshrt submit slurm|pbs|k8s`: a job for a cluster, as a file or handed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands.shared import CommandGroup, WholeRange, known_command, refuse_ranks, together

if TYPE_CHECKING:
    from meshrt.launch.batch import BatchJob
    from meshrt.launch.submit import Submitted

REST = {"allow_interspersed_args": False}  # the first word that is no option, or --, begins the ranks' own
EXAMPLES = """
\b
Examples:
  meshrt submit slurm -n 64 --nodes 4 --time 30 -- run llama-tiny --json llama.json
  meshrt submit pbs -n 8 --sweep m=128,256,512 -- run gemm --m {m} --json gemm-{m}.json
  meshrt submit k8s -n 16 --nodes 2 --image registry.example.org/meshrt:1 -- run gemm --json -
"""

job = together(
    click.option("-n", "--ranks", type=int, required=True, help="How many ranks."),
    click.option("--nodes", type=int, help="On how many nodes, evenly.  [default: the cluster's choice; k8s: 1]"),
    click.option("--tasks-per-node", "ranks_per_node", type=int, help="Ranks of a node."),
    click.option("--cores-per-node", type=int, help="Cores of a node, for more ranks than cores.  [default: a rank's]"),
    click.option("--memory", metavar="SIZE", help="Memory of a node, such as 500M or 4G."),
    click.option("--time", metavar="LIMIT", help="Minutes, or hours:minutes:seconds, after which the job is ended."),
    click.option("--name", default="meshrt", show_default=True, help="The job's name."),
    click.option(
        "--sweep", metavar="NAME=A,B,...", multiple=True,
        help="A run for each value, which stands for {NAME} in the arguments; given again, for each combination.",
    ),
    click.option(
        "--restarts", type=WholeRange(0, 1000), default=0, metavar="N",
        help="Go on from --checkpoint up to N times when ranks or nodes are lost.",
    ),
    click.option("--dry-run", is_flag=True, help="Print the file instead of handing it in."),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED, required=True, callback=known_command),
)  # fmt: skip
queue = together(
    click.option("--partition", "--queue", "partition", help="Where to wait."),
    click.option("--account", help="Who pays."),
    click.option("--output", metavar="PATH", help="Where the output goes.  [default: a file named after the job]"),
)


@click.group("submit", cls=CommandGroup, epilog=EXAMPLES)
def command() -> None:
    """Write a batch job that runs meshrt on a cluster, and hand it in: meshrt submit slurm -n 64 -- run llama-tiny."""


@command.command("slurm", context_settings=REST)
@together(job, queue)
def slurm(**values: Any) -> None:
    """A script for sbatch; several runs are an array job."""
    from meshrt.launch import slurm as system
    from meshrt.ranks import host

    _deliver(lambda batch: system.script(batch, host.library()), system.submit, **values)


@command.command("pbs", context_settings=REST)
@together(job, queue)
def pbs(**values: Any) -> None:
    """A script for qsub of PBS Professional or OpenPBS; several runs are an array job."""
    from meshrt.launch import local
    from meshrt.launch import pbs as system

    _deliver(lambda batch: system.script(batch, local.find_mpirun()), system.submit, **values)


@command.command("k8s", context_settings=REST)
@click.option("--image", required=True, help="Made with launch/Dockerfile.")
@click.option("--volume", metavar="CLAIM:/PATH", help="A persistent volume claim, and where the ranks have it.")
@job
def k8s(image: str, volume: str | None, **values: Any) -> None:
    """An MPIJob of the Kubeflow MPI Operator, for kubectl; several runs are several jobs."""
    from meshrt.launch import kubernetes as system

    _deliver(lambda batch: system.manifest(batch, image, volume), system.submit, **values)


def _deliver(
    write: Callable[[BatchJob], str], submit: Callable[[BatchJob, str], Submitted], *,
    arguments: tuple[str, ...], sweep: tuple[str, ...], memory: str | None, time: str | None, dry_run: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Print the file of a job, or hand it in and say what became of it."""
    from meshrt.launch import batch
    from meshrt.launch import sweep as sweeps

    refuse_ranks("this hands one job in, whose ranks -n says")
    job = batch.BatchJob(
        runs=sweeps.expand(arguments, [sweeps.parse_axis(axis) for axis in sweep]),
        memory=None if memory is None else batch.parse_memory(memory),
        time=None if time is None else batch.parse_time(time),
        **options,
    )
    text = write(job)
    if dry_run:
        click.echo(text, nl=False)
        return
    submitted = submit(job, text)
    click.echo(f"job {submitted.job}, output: {submitted.output}")
