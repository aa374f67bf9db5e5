"""`meshrt launch`: ranks on this machine, or on a list of hosts."""

from __future__ import annotations

import click

from meshrt.commands import shared


@click.command("launch", context_settings={"allow_interspersed_args": False})
@click.option("-n", "--ranks", type=shared.WholeRange(1, 65_536), required=True, help="How many ranks.")
@click.option("--hosts", metavar="A:4,B:4|FILE", help="Where, and how many ranks each; by ssh.  [default: here]")
@click.option(
    "--restarts", type=shared.WholeRange(0, 1000), default=0, metavar="N",
    help="Go on from --checkpoint up to N times when ranks or hosts are lost.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the command instead of running it.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, required=True, callback=shared.known_command)
def command(ranks: int, hosts: str | None, restarts: int, dry_run: bool, arguments: tuple[str, ...]) -> None:
    """Start N ranks here or on hosts, with the right settings: meshrt launch -n 64 -- run llama-tiny."""
    from meshrt.launch import hosts as several
    from meshrt.launch import local
    from meshrt.launch.job import Job

    job = Job(ranks, arguments)
    if hosts is None:
        local.launch(job, restarts, dry_run)
    else:
        several.launch(job, several.parse_hosts(hosts), restarts, dry_run)
