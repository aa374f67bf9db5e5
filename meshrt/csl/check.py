"""Every program of a folder: does it parse, build, run, and say itself that it is right?"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from meshrt.csl.errors import CslError
from meshrt.csl.host import child
from meshrt.csl.syntax.parser import parse

SCRIPTS = ("run.sh", "commands_wse3.sh", "commands.sh", "commands_wse2.sh", "run_sim.sh")
RIGHT = "SUCCESS"  # what scripts print when their own comparison holds


@dataclass(frozen=True)
class Checked:
    """A program: yes, no, or - where it was not come to or nothing says."""

    name: str
    parses: str
    builds: str
    runs: str
    right: str
    why: str


def programs(root: Path) -> list[tuple[Path, str]]:
    """Folders with a script that builds and runs a program. CslError."""
    if not root.is_dir():
        raise CslError(f"{root} is no folder")
    folders = []
    for folder in sorted({path.parent for path in root.rglob("*.sh")}):
        script = next((name for name in SCRIPTS if (folder / name).is_file()), None)
        if script is not None and any(folder.rglob("*.csl")):
            folders.append((folder, script))
    if not folders:
        raise CslError(f"{root} has no program: a folder with .csl files and one of {', '.join(SCRIPTS)}")
    return folders


def check(root: Path, folder: Path, script: str, arguments: tuple[str, ...], timeout: float) -> Checked:
    """One program, in a copy of the checkout, so that nothing is written to it."""
    name = str(folder.relative_to(root)) if folder != root else folder.name
    try:
        for path in sorted(folder.rglob("*.csl")):
            parse(path.read_text(), str(path.relative_to(root)))
    except CslError as error:
        return Checked(name, "no", "-", "-", "-", str(error))
    with TemporaryDirectory(prefix="meshrt-csl-") as made:
        copy = Path(made) / "checkout"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".git", "*.npy"))
        built = Path(made) / "built"
        try:
            ran = child.run(
                ["bash", script, *arguments],
                copy / folder.relative_to(root),
                timeout=timeout,
                capture=True,
                built=built,
            )
        except subprocess.TimeoutExpired:
            return Checked(name, "yes", "yes" if built.exists() else "-", "no", "-", f"not done in {timeout:g} s")
        lines = [line for line in (ran.stderr.strip() or ran.stdout.strip()).splitlines() if line.strip()]
        message = next((line for line in lines if line.startswith("error:")), lines[-1] if lines else "")
        why = "" if ran.returncode == 0 else message.replace(f"{copy}/", "")
        builds = "yes" if built.exists() else "no"
        if ran.returncode:
            return Checked(name, "yes", builds, "no", "-", why)
        compares = any(RIGHT in path.read_text(errors="replace") for path in folder.glob("*.py"))
        right = "yes" if RIGHT in ran.stdout else "no" if compares else "-"
        return Checked(name, "yes", builds, "yes", right, "" if right == "yes" else "compares nothing itself")
