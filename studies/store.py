"""Outcomes of runs by what was run, in a file: a full reproduction takes long and can go on later."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import meshrt
from meshrt.errors import UsageError
from meshrt.ranks.console import Console
from meshrt.ranks.files import check_target, write_file
from meshrt.studies.sweep import Job, Outcome, sweep

PENDING = Outcome(None, "not run")
Run = TypeVar("Run")
Made = TypeVar("Made")


@dataclass
class Store:
    """What has been run. `pending` are jobs that somebody wanted to know of and that have not been run yet."""

    path: str | None = None
    code: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    pending: dict[str, Job] = field(default_factory=dict)

    def emulate(self, job: Job) -> Outcome:
        """The outcome of a job; PENDING where it has yet to be run."""
        key = key_of(job)
        if key not in self.outcomes:
            self.pending[key] = job
        return self.outcomes.get(key, PENDING)

    def check(self) -> None:
        """UsageError where a program has no such option or choice: a run would not say so, or only at its end."""
        for job in self.pending.values():
            program = job.load()
            options = {option.name: option for option in program.options}
            for name, value in job.arguments.items():
                if name not in options or (options[name].choices and value not in (*options[name].choices, None)):
                    raise UsageError(f"{program.name} has no option {name.replace('_', '-')} with the choice {value}")

    def run(self, comm: Any, console: Console, what: str) -> None:
        """Run what was asked for, shared out to the ranks, and write it down: rank 0's share as it goes along."""
        self.check()
        keys, jobs = list(self.pending), list(self.pending.values())

        def keep(number: int, outcome: Outcome) -> None:
            if comm.rank == 0:
                self.outcomes[keys[number]] = outcome
                self.write()

        self.outcomes |= dict(zip(keys, sweep(comm, jobs, console, what, keep), strict=True))
        self.pending.clear()
        if keys and comm.rank == 0:
            self.write()

    def made(self, comm: Any, console: Console, title: str, since: float, table: Callable[[], Made]) -> Made:
        """A table: `table` asks for its runs where it is first called, and reads them where it is called again.

        `since`: when the reproduction began, in seconds of `perf_counter`.
        """
        table()
        counts = f"{len(self.pending)} runs to do, {len(self.outcomes)} done"
        console.text(f"{title}: {counts}, {perf_counter() - since:.0f} s so far\n")
        self.run(comm, console, f"{title}, runs")
        return table()

    def write(self) -> None:
        """The file, if there is to be one."""
        write_runs(self.path, self.code, {key: asdict(outcome) for key, outcome in self.outcomes.items()})


def open_store(path: str | None, paper: str = "", more: Sequence[Path] = ()) -> Store:
    """An empty store, or what the file holds of runs by this very code, of which are `more` files as well. UsageError.

    The path is that of `file_of`.
    """
    path = file_of(path, paper)
    code = digest(more) if path else ""
    return Store(path, code, read_runs(path, code, lambda outcome: Outcome(**outcome)))


def file_of(path: str | None, paper: str) -> str | None:
    """Where runs are kept: without a path the paper's file in the user's cache; "none" is no file. UsageError."""
    if path is None and paper:
        path = user_file(paper)
    if path == "none":
        path = None
    if path is not None:
        check_target("--cache", path)
    return path


def read_runs(path: str | None, code: str, run_of: Callable[[Any], Run]) -> dict[str, Run]:
    """What the file holds of runs by this code; runs by any other are forgotten. UsageError."""
    if path is None or not Path(path).exists():
        return {}
    try:
        contents = json.loads(Path(path).read_text())
        runs = contents["runs"] if contents["code"] == code else {}
        return {key: run_of(run) for key, run in runs.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"--cache {path} is no file of this command: name another, or delete it") from error


def write_runs(path: str | None, code: str, runs: Mapping[str, Any]) -> None:
    """The file, if there is to be one."""
    if path:
        contents = json.dumps({"code": code, "runs": runs}).encode()
        write_file("--cache", path, lambda stream: stream.write(contents))


def user_file(paper: str) -> str | None:
    """Where runs of a paper's tables are kept if nothing else is said; None where there can be no such folder."""
    root = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folder = Path(root) / "meshrt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return str(folder / f"reproduce-{paper}.json") if os.access(folder, os.W_OK) else None


def key_of(job: Job) -> str:
    """Everything that a run depends on but the code."""
    device = {name: value for name, value in asdict(job.device).items() if name != "sources"}
    program = job.program if isinstance(job.program, str) else f"{job.program.__module__}.{job.program.__name__}"
    facts = (program, job.mesh, device, dict(sorted(job.arguments.items())), job.payload, job.static)
    return json.dumps(facts)


def digest(more: Sequence[Path] = ()) -> str:
    """Of all files that an emulation may depend on, and of these."""
    hashed = sha256()
    for path in [*sorted(sources(Path(meshrt.__file__).parent)), *more]:
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


def sources(root: Path) -> Sequence[Path]:
    """Programs and models may be links or lie elsewhere; studies and launchers do not change what a run measures."""
    import meshrt.models
    import meshrt.programs

    models = [Path(path) for path in meshrt.models.__path__]
    programs = [Path(path) for path in meshrt.programs.__path__]
    excluded = {"programs", "models", "studies", "launch"}
    code = [path for suffix in ("*.py", "*.[ch]") for path in root.rglob(suffix)]
    runtime = [path for path in code if path.relative_to(root).parts[0] not in excluded]
    configs = [path for folder in models for path in folder.glob("*/config.json")]
    others = [path for folder in (*programs, *models) for path in folder.rglob("*.py")]
    return runtime + others + configs
