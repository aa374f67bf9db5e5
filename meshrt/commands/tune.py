"""`meshrt tune MODEL`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from meshrt import failure
from meshrt.commands import shared
from meshrt.device import find_device

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


@click.command("tune")
@click.argument("model")
@click.option("--prompt-tokens", type=click.IntRange(1), required=True, help="Tokens of a prompt, on average.")
@click.option("--new-tokens", type=click.IntRange(1), required=True, help="Tokens of an answer, on average.")
@shared.machine
@click.option("--kv", type=click.Choice(["shift", "concat", "roundrobin"]), default="shift", show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), help="[default: the model's]")
@click.option(
    "--layers-run", type=click.IntRange(1), help="Of a region's layers.  [default: 1 in large models, or all]"
)
@click.option("--sides", callback=shared.integers, metavar="N,N,...", help="Only N x N cores for prefill.")
@click.option("--decode-sides", callback=shared.integers, metavar="N,N,...", help="Only N x N cores for decode.")
@click.option("--regions", callback=shared.integers, metavar="R,R,...", help="For prefill, the first that suffice.")
@click.option("--decode-regions", callback=shared.integers, metavar="R,R,...", help="The same for decode.")
@click.option("--again", is_flag=True, help="Do not take an answer that is there already.")
@shared.together(shared.json_to("it"), shared.quiet)
def command(model: str, **options: Any) -> None:
    """Choose cores, regions, head groups and trees for prefill and decode of a model, from emulated runs.

    The answer is kept, and `meshrt run MODEL --tuned` uses it. Share the runs out with mpirun.
    """
    sys.exit(failure.run_guarded(lambda comm, board: tune(comm, model, **options)))


def tune(
    comm: Intracomm, model: str, *, prompt_tokens: int, new_tokens: int, device: str, core_memory: int | None,
    route_entries: int | None, kv: str, dtype: str | None, layers_run: int | None, again: bool,
    json_path: str | None, quiet: bool, **limits: tuple[int, ...] | None,
) -> int:  # fmt: skip
    """One rank's part of a tuning."""
    from meshrt import report
    from meshrt.studies import tuned
    from meshrt.studies.tune import Space
    from meshrt.studies.tune_print import print_answer

    console = shared.start(comm, json_path, quiet)
    machine = find_device(device, core_memory=core_memory, route_entries=route_entries)
    question = tuned.make_question(model, machine, prompt_tokens, new_tokens, kv, dtype, layers_run)
    told = tuned.answer(comm, console, question, Space(**limits), again)
    if comm.rank == 0:
        report.deliver_json(told, json_path)
        if console.loud:
            print_answer(told)
    tuned.check_found(told)
    return 0
