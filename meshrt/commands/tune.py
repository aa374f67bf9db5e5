"""`meshrt tune MODEL` and `meshrt tune xuv`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.mesh.devicefile import find_device
from meshrt.neuron.device import NEURON_PRESETS, find_neuron_device
from meshrt.ranks.failing import failure

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

positive = shared.WholeRange(1)


class Tune(click.Command):
    """The command for models; `xuv` in the model's place is another one."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["xuv"]:
            return xuv.make_context(f"{info_name} xuv", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("tune", cls=Tune)
@click.argument("model")
@click.option("--prompt-tokens", type=shared.WholeRange(1), required=True, help="Tokens of a prompt, on average.")
@click.option("--new-tokens", type=shared.WholeRange(1), required=True, help="Tokens of an answer, on average.")
@shared.machine
@click.option("--kv", type=shared.Name(["shift", "concat", "roundrobin"]), default="shift", show_default=True)
@click.option("--dtype", type=shared.Name(["float32", "float16", "bfloat16"]), help="[default: the model's]")
@click.option(
    "--layers-run", type=shared.WholeRange(1), help="Of a region's layers.  [default: 1 in large models, or all]"
)
@click.option("--sides", callback=shared.integers, metavar="N,N,...", help="Only N x N cores for prefill.")
@click.option("--decode-sides", callback=shared.integers, metavar="N,N,...", help="Only N x N cores for decode.")
@click.option("--regions", callback=shared.integers, metavar="R,R,...", help="For prefill, the first that suffice.")
@click.option("--decode-regions", callback=shared.integers, metavar="R,R,...", help="The same for decode.")
@click.option("--again", is_flag=True, help="Do not take an answer that is there already.")
@shared.together(shared.form(), shared.json_to("it"), shared.quiet)
def command(model: str, **options: Any) -> None:
    """Choose cores, regions, head groups and trees for prefill and decode of a model, from emulated runs.

    The answer is kept, and `meshrt run MODEL --tuned` uses it. Share the runs out with mpirun.

    `meshrt tune xuv` chooses blocks of matrix products on NeuronCores: `meshrt tune xuv --help`.
    """
    sys.exit(failure.run_guarded(lambda comm, board: tune(comm, model, **options)))


def tune(
    comm: Intracomm, model: str, *, prompt_tokens: int, new_tokens: int, device: str, core_memory: int | None,
    route_entries: int | None, kv: str, dtype: str | None, layers_run: int | None, again: bool,
    form: str, json_path: str | None, quiet: bool, **limits: tuple[int, ...] | None,
) -> int:  # fmt: skip
    """One rank's part of a tuning."""
    from meshrt.reports import report
    from meshrt.studies.tune import answers
    from meshrt.studies.tune.printed import print_answer
    from meshrt.studies.tune.search import Space

    console = shared.start(comm, json_path, quiet, form=form)
    machine = find_device(device, core_memory=core_memory, route_entries=route_entries)
    question = answers.make_question(model, machine, prompt_tokens, new_tokens, kv, dtype, layers_run)
    document = answers.answer(comm, console, question, Space(**limits), again)
    if comm.rank == 0:
        report.deliver_json(document, json_path)
        if not quiet and json_path != "-":
            print_answer(document, form)
    answers.check_found(document)
    return 0


@click.command("xuv")
@click.option("--m", type=positive, required=True, help="Rows of x: tokens.")
@click.option("--k", type=positive, required=True, help="Columns of x.")
@click.option("--r", type=positive, required=True, help="Rank: columns of u.")
@click.option("--n", type=positive, required=True, help="Columns of v.")
@click.option("--kernel", type=shared.Name(["fused", "mlp"]), default="fused", show_default=True)
@click.option("--dtype", type=shared.Name(["bfloat16", "float16", "float32"]), default="bfloat16", show_default=True)
@click.option(
    "--sums", type=shared.Name(["float32", "tile"]), default="float32", show_default=True,
    help="What SBUF keeps between blocks; tile: as in eq. 11 and the published kernels.",
)  # fmt: skip
@click.option("--device", type=shared.Name([*NEURON_PRESETS]), default="trn1", show_default=True)
@click.option(
    "--cores", type=shared.WholeRange(1, 65_536), default=1, show_default=True,
    help="NeuronCores, which share the rows of x.",
)  # fmt: skip
@click.option("--top", type=positive, default=12, show_default=True, metavar="N", help="Emulate the first N proposals.")
@shared.together(shared.form(), shared.json_to("it"), shared.quiet)
def xuv(**options: Any) -> None:
    """Choose blocks of x u v or of the MLP: proposed by NeuronMM's eqs. 10 and 11, measured by emulation.

    Eq. 10 says how many operations blocks give for a byte of HBM traffic, and B_M decides it alone: the least one that
    keeps the tensor engine busy is where to begin. Eq. 11 says what blocks take of SBUF. Those that fit are ordered,
    the first are run by shape, and what was promised stands beside what was measured; the fastest is marked. Its
    --block-m, -k, -r and -n are for `meshrt run xuv`. Share the runs out with mpirun.

    \b
    Examples:
      meshrt tune xuv --m 4096 --k 7168 --r 4096 --n 18432 --sums tile
      mpirun -n 2 meshrt tune xuv --kernel mlp --m 1024 --k 2048 --r 1280 --n 8192
    """
    sys.exit(failure.run_guarded(lambda comm, board: tune_xuv(comm, **options)))


def tune_xuv(comm: Intracomm, *, device: str, form: str, json_path: str | None, quiet: bool, **options: Any) -> int:
    """One rank's part of a tuning."""
    from meshrt.reports import report
    from meshrt.studies.tune import xuv as study

    console = shared.start(comm, json_path, quiet, form=form)
    document = study.tune(comm, console, find_neuron_device(device), **options)
    if comm.rank == 0:
        report.deliver_json(document, json_path)
        if not quiet and json_path != "-":
            study.print_answer(document, form)
    study.check_found(document)
    return 0
