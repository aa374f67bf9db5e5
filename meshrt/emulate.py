"""One run of a program on any machine: `meshrt run`, and `meshrt.run` of a script or a notebook."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from threading import current_thread, main_thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

from meshrt.alike import check_alike
from meshrt.errors import FullError, LimitError, UsageError, in_full, told
from meshrt.given import Own, options_of
from meshrt.machine import find_machine
from meshrt.options import in_short, pythons, several
from meshrt.program import Program, checked_settings, settings_of, written_by
from meshrt.ranks import host, launcher
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.ranks.failing import outside
from meshrt.ranks.files import check_apart
from meshrt.ranks.handout import gathered, handed_out
from meshrt.reports.parts import Runs, one_report
from meshrt.reports.report import Report, gather_report
from meshrt.version import __version__

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


def emulate(
    comm: Any, board: Board, program: Program, arguments: Mapping[str, Any], *, payload: bool = True,
    console: Console | None = None, closes: bool = False, **settings: Any,
) -> dict[str, Any] | None:  # fmt: skip
    """Run a program on the ranks of `comm`: the report as the JSON has it, None off rank 0. All ranks call it.

    `arguments` are options of the program, `settings` those of its machine; what is left out has its default. A program
    that returns `Runs` is run so often. `closes`: give the machine back at the end on several ranks, too, for who runs
    many. UsageError, LimitError and what else the program raises.
    """
    start, kind = perf_counter(), find_machine(program.machine)
    values = program.complete(arguments)
    settings = checked_settings(program.machine, settings)
    check_apart(written_by(program, {**values, **settings}))
    machine = kind.open_machine(comm, board, program.mesh, payload, console or Console(), **settings)
    try:
        result = program.run(machine, **values)
        machine.console.clear()
        if isinstance(result, Runs):
            changed = [{**values, **change} for change in result.changes]
            reports = [
                emulate(comm, board, program, each, payload=payload, console=console, closes=True, **settings)
                for each in changed
            ]
            whole = [report for report in reports if report is not None]
            return one_report(whole, _reported(program, values)) if whole else None
        library = "none" if isinstance(comm, Alone) else host.library()
        facts = {"wall_seconds": perf_counter() - start, "mpi": library, "version": __version__}
        report = gather_report(program.machine, machine, program.name, _reported(program, values), result, facts)
        if closes and comm.size > 1:
            machine.close()
        return report
    except FullError as error:
        error.advice = error.advice or partial(_advice, program, arguments, settings)
        raise
    finally:
        if comm.size == 1:  # elsewhere a rank that fails must not wait for the others
            machine.close()


def _reported(program: Program, values: Mapping[str, Any]) -> dict[str, Any]:
    return {option.name: values[option.name] for option in program.options if option.reported}


def _advice(program: Program, arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    from meshrt.fitting.fit import advice  # of runs that did not fit alone

    return advice(program, arguments, settings)


def run(
    program: Own | str | Path,
    *,
    on: str | None = None,
    payload: bool | str = True,
    comm: Intracomm | None = None,
    **options: Any,
) -> Report:
    """Emulate a program: `run("gemm", mesh=(8, 8), m=256)`. Alone in this process, or under mpirun on all its ranks.

    `program` is the name of a program or a model, the path of a FILE.py, or a function `run(block, *, ...)`; `on` asks
    for a machine where a program has several; `payload` False, or "none" as the command says it, leaves numbers out.
    Options are those of `meshrt run PROGRAM --help`, of the program and of its machine (device, mesh or cores or tp,
    core_memory ...). A device may also be a `Device`, a file a path, a dtype NumPy's; sizes such as "8x8"
    and texts such as "1,2,3" may be lists, tuples or arrays of numbers: the report has the text. `comm` are the ranks
    that share it [default: all]; they ask for the same run, and every rank gets the report.

    UsageError, LimitError and so on, as exceptions, and ModelError (`meshrt.models.errors`) for a model's folder. What
    would do where memory is full is a note of the LimitError, which Python shows beneath it. On several ranks an error
    that comes up in the midst of the run ends all of them, with its message and exit code, as `meshrt run` does: no
    rank could go on alone. So does, with its traceback, what a rank raises outside of it and nobody catches.
    """
    numbers = _with_numbers(payload)
    loaded, arguments, settings = options_of(program, on, options)
    _check_comm(comm)
    with _one_thread():
        size = launcher.launched_size() if comm is None else comm.size
        _check_thread(size)
        if size == 1:
            try:
                report = emulate(comm or Alone(), Board.alone(), loaded, arguments, payload=numbers, **settings)
            except FullError as error:
                for line in told(error):
                    error.add_note(line)
                raise
        else:
            report = _together(comm, loaded, arguments, numbers, settings)
    assert report is not None
    return Report(report)


def sweep(
    program: Own | str | Path,
    *,
    on: str | None = None,
    payload: bool | str = True,
    comm: Intracomm | None = None,
    **options: Any,
) -> list[Report]:
    """`run` for every combination of those options that are lists, ranges or arrays: `sweep("gemm", m=[64, 128])`.

    One value of several numbers is a tuple or a text there: `mesh=[(4, 4), (8, 8)]`. In the order of the options, the
    last changing fastest; every rank gets all reports. Under mpirun the ranks share out the runs, each of which is
    emulated whole by one. A run over a limit of the machine gives a report that says so (`refused`), and what would do;
    `data["settings"]` of it are the options of the machine that it was given. Any other error is raised.
    """
    numbers = _with_numbers(payload)
    _check_comm(comm)
    every = {name: several(value) for name, value in options.items() if not isinstance(value, tuple)}
    varied = {name: values for name, values in every.items() if values is not None}
    if nothing := [name for name, values in varied.items() if not values]:
        value = in_short(options[nothing[0]])
        raise UsageError(f"{nothing[0]} is {value}: a sweep needs a value at least; give one, or leave it away")
    runs = [options | dict(zip(varied, values, strict=True)) for values in product(*varied.values())]
    ready = [options_of(program, on, choice) for choice in runs]
    _check_written(ready)
    host.prepare_environment()
    _check_thread(launcher.launched_size() if comm is None else comm.size)
    comm = comm or host.communicator()
    meeting = outside.Meeting("meshrt.sweep")
    check_alike(comm, ready, numbers)
    shared = handed_out(comm, len(ready))
    meeting.over()
    reports: dict[int, Report] = {}
    with _one_thread():
        for at in shared:
            loaded, arguments, settings = ready[at]
            try:
                report = emulate(Alone(), Board.alone(), loaded, arguments, payload=numbers, **settings)
                assert report is not None
                reports[at] = Report(report)
            except LimitError as error:
                facts = {"machine": loaded.machine, "program": loaded.name, "arguments": loaded.complete(arguments)}
                facts["settings"] = {name: getattr(value, "name", value) for name, value in settings.items()}
                reports[at] = Report(facts | {"refused": in_full(error)}, in_full(error))
    meeting = outside.Meeting("meshrt.sweep")
    all_reports = {at: report for part in gathered(comm, reports) for at, report in part.items()}
    meeting.over()
    return [all_reports[at] for at in range(len(ready))]


def _check_written(runs: Sequence[tuple[Program, Mapping[str, Any], Mapping[str, Any]]]) -> None:
    """UsageError where several runs would write one file, of which that of the last would be left."""
    targets = Counter(
        (option.name, str(values[option.name]))
        for program, arguments, settings in runs
        for values in [{**arguments, **settings}]
        for option in (*program.options, *settings_of(program.machine).values())
        if option.written and values.get(option.name) is not None
    )
    for (name, target), count in targets.items():
        if count > 1:
            raise UsageError(
                f"{name} is {target!r} in {count} runs, each of which would write it: leave it away, and run those that"
                " it is for one by one"
            )


def _with_numbers(payload: Any) -> bool:
    """True, or "full" as the command says it; False, or "none". UsageError for anything else."""
    payload = pythons(payload)
    if isinstance(payload, str) and payload in ("full", "none"):
        return payload == "full"
    if isinstance(payload, bool):
        return payload
    raise UsageError(f"payload is {payload!r}; it is True or 'full', or False or 'none' for no numbers")


def _check_comm(comm: Any) -> None:
    """UsageError for what is no communicator."""
    if comm is not None and not hasattr(comm, "allgather"):
        raise UsageError(f"comm is {in_short(comm)}; it is a communicator of mpi4py's, such as MPI.COMM_WORLD")


def _check_thread(comm_size: int) -> None:
    """UsageError in any thread but the main one, where several ranks meet: they would do so in any order."""
    if comm_size > 1 and current_thread() is not main_thread():
        raise UsageError(
            "runs on several ranks are for the main thread, in the same order on each: call it there, or give"
            " comm=MPI.COMM_SELF for runs of this rank alone"
        )


def _together(
    comm: Intracomm | None, program: Program, arguments: Mapping[str, Any], payload: bool, settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """On several ranks, with what ends a job that cannot go on. Every rank gets the report."""
    from meshrt.ranks.failing import failure

    reports: list[dict[str, Any] | None] = []
    meeting = outside.Meeting("meshrt.run")

    def work(world: Intracomm, board: Board) -> int:
        meeting.over()
        check_alike(comm or world, [(program, arguments, settings)], payload)
        report = emulate(comm or world, board, program, arguments, payload=payload, **settings)
        reports.append((comm or world).bcast(report))
        return 0

    code = failure.run_guarded(work)
    if code:
        os._exit(code)
    return reports[0]


@contextmanager
def _one_thread() -> Iterator[None]:
    """NumPy's BLAS on one thread, also where it has been loaded before: only then are a product's bits the same."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        yield


__all__: Sequence[str] = ["emulate", "run", "sweep"]
