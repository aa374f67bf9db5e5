"""`meshrt bench`: programs' alternatives side by side, and how fast the emulator is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.commands.figures import FIGURES
from meshrt.mesh.devicefile import find_device
from meshrt.ranks.failing import failure

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


class Bench(shared.CommandGroup):
    """`bench gemm` and the like: their options are those of the program, read off its signature when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from meshrt.studies.bench.compare import COMPARISONS

        return [*COMPARISONS, "serve", *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from meshrt.studies.bench.compare import COMPARISONS

        if cmd_name == "serve":
            return _serving()
        if cmd_name in COMPARISONS:
            return _comparison(cmd_name)
        return super().get_command(ctx, cmd_name)


@click.group("bench", cls=Bench)
def command() -> None:
    """Measure and compare."""


for figure in FIGURES:
    command.add_command(figure)


payload = click.option("--payload", type=shared.Name(["full", "none"]), help="[default: full up to 4096 cores]")
only = click.option("--only", multiple=True, metavar="NAME", help="Only this alternative; may be given again.")


def _comparison(name: str) -> click.Command:
    """The command that sets a program's alternatives side by side."""
    from meshrt.program import load_program
    from meshrt.studies.bench.compare import COMPARISONS

    comparison = COMPARISONS[name]
    program = load_program(comparison.program)
    width, height = comparison.mesh or program.mesh
    summary = f"The choices of {program.name}'s --{comparison.option} on the same work, in one table."
    summary += f"\n\nOn {width}x{height} cores, if --mesh does not say otherwise."

    options = shared.own_options(program, comparison.fixed())
    for option in options:
        option.default = comparison.defaults.get(option.name or "", option.default)

    @click.command(name, params=options, help=summary)
    @shared.together(
        shared.mesh, shared.machine, shared.form(), shared.json_to("the report"), shared.quiet, payload, only
    )
    def compare(**values: Any) -> None:
        sys.exit(failure.run_guarded(lambda comm, board: _compare(comm, name, **values)))

    return compare


def _compare(
    comm: Intracomm, name: str, *, mesh: str | None, device: str, core_memory: int | None, route_entries: int | None,
    payload: str | None, only: tuple[str, ...], form: str, json_path: str | None, quiet: bool, **arguments: Any,
) -> int:  # fmt: skip
    """One rank's part of a comparison."""
    from meshrt.mesh.mesh import parse_mesh
    from meshrt.reports import report
    from meshrt.studies.bench import compare

    console = shared.start(comm, json_path, quiet, form=form)
    document = compare.compare(
        comm, console, name, arguments, mesh=parse_mesh(mesh) if mesh else None, only=only,
        device=find_device(device, core_memory=core_memory, route_entries=route_entries),
        payload=None if payload is None else payload == "full",
    )  # fmt: skip
    if comm.rank == 0:
        report.deliver_json(document, json_path)
        if not quiet and json_path != "-":
            compare.print_comparison(document, form)
    return 0


def _serving() -> click.Command:
    """The command that sets ways to serve side by side; its own options are those of the program, but for the ways."""
    from meshrt.program import load_program, settings_of
    from meshrt.studies.bench.serve import DEFAULT, LAYOUTS, WAYS

    way = shared.Name([*WAYS])
    ways = f"{'; '.join(DEFAULT)}, if keys and values are decomposed; with experts {', '.join(LAYOUTS)}"
    help_text = f"Only this way; may be given again.  [default: {ways}]"

    settings = settings_of("gpu")
    machine = [shared.option_of(settings[name]) for name in ("device", "link", "link_rate", "framework", "gpu_memory")]
    options = shared.own_options(load_program("serve"), ("scheme", "kv", "experts"))

    @click.command("serve", params=[*options, *machine])
    @click.option("--tp", type=shared.WholeRange(1), default=1, show_default=True, help="How many GPUs.")
    @click.option("--payload", type=shared.Name(["full", "none"]), default="none", show_default=True)
    @click.option("--only", multiple=True, type=way, help=help_text)
    @shared.together(shared.form(), shared.json_to("the report"), shared.quiet)
    def serve(**values: Any) -> None:
        """Ways to serve a model on GPUs, on the same requests: throughput, TTFT, TPOT, ITL, percentiles.

        Requests with random tokens arrive at random, are batched continuously over a paged cache, and wait where a GPU
        has no memory left. Times are virtual. TTFT: from arrival to the first token; ITL: from a token to the next;
        TPOT: a request's mean ITL; E2EL: from arrival to the last token. `dense` is the undecomposed model; those with
        `lowrank` keep latents in their cache; `static` and all but `base` replay a recorded step, `eager` launches it.
        `tensor`, `replicated` and `alltoall` are ways to spread a mixture's experts (docs/moe.md), step by step.

        \b
        meshrt bench serve --model llama3-70b --ratio 0.4 --layers-run 2 --tp 8 --requests 128 --rate 20
        meshrt bench serve --model opt-30b --ratio 0.4 --layers-run 2 --tp 4 --requests 512 --max-batch 512 \\
            --prompt-tokens 16:64 --output-tokens 128 --link pcie --only base --only deinfer
        meshrt bench serve --model deepseek-moe-16b --layers-run 3 --tp 8 --device a800 --requests 64
        mpirun -n 2 meshrt bench serve --model small --tp 4 --payload full    # with numbers; the ways shared out
        """
        sys.exit(failure.run_guarded(lambda comm, board: _serve(comm, **values)))

    return serve


def _serve(
    comm: Intracomm, *, tp: int, device: str, link: str | None, link_rate: float | None, framework: str | None,
    gpu_memory: int | None, payload: str, only: tuple[str, ...], form: str, json_path: str | None, quiet: bool,
    **arguments: Any,
) -> int:  # fmt: skip
    """One rank's part: each way is run whole by one rank."""
    from meshrt.gpu.presets import find_gpu
    from meshrt.reports import report
    from meshrt.studies.bench import serve as study

    console = shared.start(comm, json_path, quiet, form=form)
    machine = find_gpu(device, link_rate, framework, link=link, memory_bytes=gpu_memory)
    document = study.compare(comm, console, machine, tp, payload == "full", only, arguments)
    if comm.rank == 0:
        report.deliver_json(document, json_path)
        if not quiet and json_path != "-":
            study.print_comparison(document, form)
    return 0
