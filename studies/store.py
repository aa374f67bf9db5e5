"""Outcomes of runs by what was run, in a file: a full reproduction takes long and can go on later."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from glob import escape
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import meshrt
from meshrt.errors import UsageError
from meshrt.ranks.console import Console
from meshrt.ranks.files import check_target, write_file
from meshrt.studies.sweep import Outcome, RunJob, sweep

PENDING = Outcome(None, "not run")
SHARE = ".of-rank-"  # in the name of a rank's own file beside the one of all
KeptRun = TypeVar("KeptRun")
Answer = TypeVar("Answer")


@dataclass
class RunStore:
    """What has been run. `pending` are jobs that somebody wanted to know of and that have not been run yet."""

    path: str | None = None
    code: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    pending: dict[str, RunJob] = field(default_factory=dict)

    def emulate(self, job: RunJob) -> Outcome:
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

    def run(self, comm: Any, console: Console, label: str) -> None:
        """Run what was asked for, shared out to the ranks, and write it down, each rank its share as it goes along."""
        self.check()
        comm.Barrier()  # all have read the file before one writes it
        keys, jobs, mine = list(self.pending), list(self.pending.values()), dict[str, Outcome]()

        def keep(number: int, outcome: Outcome) -> None:
            mine[keys[number]] = outcome
            self.keep(comm.rank, mine)

        self.outcomes |= dict(zip(keys, sweep(comm, jobs, console, label, keep), strict=True))
        self.pending.clear()
        if keys:
            self.write(comm)

    def keep(self, rank: int, mine: Mapping[str, Outcome]) -> None:
        """What a rank has run so far: beside all that was there, or in a file of its own."""
        runs = {**self.outcomes, **mine} if rank == 0 else mine
        write_share(rank, self.path, self.code, {key: asdict(outcome) for key, outcome in runs.items()})

    def made(self, comm: Any, console: Console, title: str, since: float, table: Callable[[], Answer]) -> Answer:
        """A table: `table` asks for its runs where it is first called, and reads them where it is called again.

        `since`: when the reproduction began, in seconds of `perf_counter`.
        """
        table()
        counts = f"{len(self.pending)} runs to do, {len(self.outcomes)} done"
        console.text(f"{title}: {counts}, {perf_counter() - since:.0f} s so far\n")
        self.run(comm, console, f"{title}, runs")
        return table()

    def write(self, comm: Any) -> None:
        """The file, if there is to be one, of what all ranks have: all ranks call it."""
        write_all(comm, self.path, self.code, {key: asdict(outcome) for key, outcome in self.outcomes.items()})


def open_store(path: str | None, paper: str = "", more: Sequence[Path] = ()) -> RunStore:
    """An empty store, or what the file holds of runs by this very code, of which are `more` files as well. UsageError.

    The path is that of `file_of`.
    """
    path = file_of(path, paper)
    code = digest(more) if path else ""
    return RunStore(path, code, read_runs(path, code, lambda outcome: Outcome(**outcome)))


def file_of(path: str | None, paper: str) -> str | None:
    """Where runs are kept: without a path the paper's file in the user's cache; "none" is no file. UsageError."""
    if path is None and paper:
        path = user_file(paper)
    if path == "none":
        path = None
    if path is not None:
        check_target("--cache", path)
    return path


def read_runs(path: str | None, code: str, run_of: Callable[[Any], KeptRun]) -> dict[str, KeptRun]:
    """What the file holds of runs by this code, with ranks' own files of a job that was stopped; runs by any other code
    are forgotten. UsageError.
    """
    runs: dict[str, KeptRun] = {}
    for file in [] if path is None else [Path(path), *_shares(path)]:
        try:
            if file.exists():
                contents = json.loads(file.read_text())
                by_key = contents["runs"] if contents["code"] == code else {}
                runs |= {key: run_of(run) for key, run in by_key.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"--cache {file} is no file of this command: name another, or delete it") from error
    return runs


def write_share(rank: int, path: str | None, code: str, runs: Mapping[str, Any]) -> None:
    """What a rank has run so far: rank 0's file is the one that was named, and has all else that is known."""
    write_runs(f"{path}{SHARE}{rank}" if path and rank else path, code, runs)


def write_all(comm: Any, path: str | None, code: str, runs: Mapping[str, Any]) -> None:
    """The file of what all ranks have run, in place of theirs. All ranks call it."""
    if path and comm.rank == 0:
        write_runs(path, code, runs)
        for file in _shares(path):
            file.unlink()
    comm.Barrier()  # no rank begins a new file before the old one is gone


def write_runs(path: str | None, code: str, runs: Mapping[str, Any]) -> None:
    """The file, if there is to be one."""
    if path:
        contents = json.dumps({"code": code, "runs": runs}).encode()
        write_file("--cache", path, lambda stream: stream.write(contents))


def _shares(path: str) -> list[Path]:
    return sorted(Path(path).parent.glob(f"{escape(Path(path).name)}{SHARE}*"))


def user_file(paper: str) -> str | None:
    """Where runs of a paper's tables are kept if nothing else is said; None where there can be no such folder."""
    root = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folder = Path(root) / "meshrt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return str(folder / f"reproduce-{paper}.json") if os.access(folder, os.W_OK) else None


def key_of(job: RunJob) -> str:
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
