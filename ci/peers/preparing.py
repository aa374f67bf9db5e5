"""What the commands beside this file need: other tools brought to this machine, and programs in C built.

What cannot be done is a Refusal, of one line that says what, why and what to do.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

REPOSITORY = "https://github.com/spcl/LogGOPSim"
PACKAGES = {  # of Debian and Ubuntu: what each brings, and for which tool
    "libsimgrid-dev": ("smpicc", "SMPI"),
    "g++": ("g++", "SMPI and LogGOPSim"),
    "make": ("make", "LogGOPSim"),
    "re2c": ("re2c", "LogGOPSim"),
    "gengetopt": ("gengetopt", "LogGOPSim"),
    "libgraphviz-dev": ("graphviz/cgraph.h", "LogGOPSim"),
    "git": ("git", "fetching"),
}
INCLUDES = "/usr/include", "/usr/local/include", "/opt/homebrew/include"
TOOL, ABSENT = "LogGOPSim", "No such file"
TIME_LIMIT = 600  # seconds, for a step of installing


class Refusal(Exception):
    """One line: what cannot be done, why, and what to do."""


def is_present(name: str) -> bool:
    """Is a command on PATH, or a header where compilers look?"""
    return any(Path(folder, name).exists() for folder in INCLUDES) if name.endswith(".h") else bool(shutil.which(name))


def cache() -> Path:
    """The folder in which LogGOPSim is kept: meshrt/LogGOPSim in $XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "meshrt" / "LogGOPSim"


def install(wants_loggopsim: bool) -> Iterator[str]:
    """Install the packages that are missing, and fetch LogGOPSim if it is wanted; a line for each step, done or not."""
    missing = [package for package, (brings, _) in PACKAGES.items() if not is_present(brings)]
    if missing:
        yield from _packages(missing)
    if wants_loggopsim and not is_checkout(cache()):
        try:
            yield clone(cache())
        except Refusal as refusal:
            yield str(refusal)


def _packages(missing: Sequence[str]) -> Iterator[str]:
    by_hand = f"apt-get install {' '.join(missing)}"
    if not shutil.which("apt-get"):
        wanted = ", ".join(f"{PACKAGES[package][0]} ({PACKAGES[package][1]})" for package in missing)
        yield f"nothing is installed: apt-get is not on PATH; install in this machine's own way what brings {wanted}"
        return
    apt = ["apt-get"] if os.geteuid() == 0 else ["sudo", "-n", "apt-get"]  # -n: never asks for a password
    if os.geteuid() and not (shutil.which("sudo") and _ended(["sudo", "-n", "true"]) == ""):
        yield f"nothing is installed: that takes root, and sudo without a password; have root run: {by_hand}"
        return
    reason = _ended([*apt, "-q", "update"])
    if reason:
        yield f"apt-get update: {reason}; the lists of packages that are there are taken"
    for package in missing:  # each by itself: what one lacks keeps no other away
        reason = _ended([*apt, "-y", "-q", "install", "--no-install-recommends", package])
        brings, tool = PACKAGES[package]
        if reason:
            yield f"{package} is not installed ({brings}, for {tool}): {reason}; try: apt-get install {package}"
        else:
            yield f"{package} is installed ({brings}, for {tool})"


def _ended(argv: Sequence[str], env: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a step. '' where it ended well, else why not, in its own last words."""
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        ended = subprocess.run(
            argv, env=os.environ | quiet | (env or {}), cwd=folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not done after {TIME_LIMIT} s"
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"
    if not ended.returncode:
        return ""
    lines = [line.strip() for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    reasons = [line for line in lines if "error" in line.lower() or line.startswith(("E:", "fatal:")) or ABSENT in line]
    return [*reasons[:1], *lines[-1:], f"ended with code {ended.returncode}"][0]


# ------------------------------------------------------------------------------------------------------ LogGOPSim


def is_checkout(folder: Path) -> bool:
    """Is this a checkout of LogGOPSim?"""
    return (folder / "src" / "LogGOPSim" / "Makefile").is_file()


def clone(folder: Path, repository: str = REPOSITORY) -> str:
    """Fetch LogGOPSim into a folder, whole or not at all; says so. Refusal."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    by_hand = f"fetch {repository} by hand and name its folder: --loggopsim FOLDER"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        reason = _ended(["git", "clone", "-q", "--depth", "1", repository, str(part)])
        if not reason and not is_checkout(part):
            reason = "it has no src/LogGOPSim/Makefile"
        if not reason:
            shutil.rmtree(folder, ignore_errors=True)
            part.replace(folder)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
    if reason:
        shutil.rmtree(part, ignore_errors=True)
        raise Refusal(f"LogGOPSim is not fetched: {reason}; {by_hand}")
    return f"LogGOPSim is fetched into {folder}"


def build_loggopsim(checkout: Path, scratch: Path) -> Path:
    """The folder of a copy that is built with optimisation. Refusal."""
    missing = [package for package, (brings, tool) in PACKAGES.items() if TOOL in tool and not is_present(brings)]
    source = scratch / "loggopsim"
    shutil.copytree(checkout / "src" / "LogGOPSim", source)
    options = "CXXFLAGS=-std=c++11 -O3 -march=native -w", "CCFLAGS=-O3 -w"
    reason = _ended(["make", "-s", "clean"], folder=source) or _ended(["make", "-s", *options], folder=source)
    if reason:
        mend = f"install {', '.join(missing)}, as --install does" if missing else f"run make in {checkout} by hand"
        raise Refusal(f"LogGOPSim is left out: it cannot be built: {reason}; {mend}")
    return source


# ------------------------------------------------------------------------------------------------- programs in Python


def check_python(command: str) -> None:
    """Refusal where the Python that runs this has not what meshrt needs."""
    if missing := [name for name in ("click", "mpi4py", "numpy") if importlib.util.find_spec(name) is None]:
        raise Refusal(f"{sys.executable} has no {', '.join(missing)}: run .venv/bin/python {command}")


# ------------------------------------------------------------------------------------------------------ programs in C


def build(compiler: Sequence[str], options: Sequence[str], source: Path, program: Path) -> Path:
    """Compile a program in C. Refusal where there is no such compiler, or it refuses."""
    if not shutil.which(compiler[0]):
        mend = "install one (Debian: gcc), put it on PATH or name it: CC=..."
        raise Refusal(f"{source.name} is not built: there is no compiler {compiler[0]} on PATH; {mend}")
    reason = _ended([*compiler, *options, str(source), "-o", str(program)])
    if reason:
        raise Refusal(f"{source.name} is not built: {shlex.join(compiler)}: {reason}; try: {compiler[0]} --version")
    return program


def build_loop(source: Path, program: str) -> str:
    """A loop in C, built as the loops here are: by CC, or cc. Refusal."""
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    options = "-std=c99", "-O3", "-march=native", "-ffp-contract=off"
    return str(build(compiler, options, source, Path(program)))


def refuse(refusal: Refusal | str) -> int:
    """Print the line, and return the exit code of wrong usage or input, a missing tool among it."""
    print(refusal, file=sys.stderr)
    return 2
