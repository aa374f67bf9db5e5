"""Writes a run's state: files get their names when all of their bytes are on the disk, the index after all others."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from meshrt.errors import UsageError
from meshrt.ranks.control import Control
from meshrt.ranks.files import write_file
from meshrt.ranks.snapshot import INDEX, OURS, SCHEMA, File, SnapshotPart, agree, digest, digest_of


def prepare(control: Control, option: str, folder: str) -> None:
    """Make the folder, if it is not there. UsageError where no state can be kept there. All ranks call it."""
    problem = None
    if control.rank == 0:
        try:
            Path(folder).mkdir(exist_ok=True)
            problem = None if folder else f"{option} '' names no folder"
        except OSError as error:
            problem = f"{option} {folder} cannot be made a folder: {error.strerror}"
        except ValueError:  # each Python has its own words
            problem = f"{option} {folder!r} is no name of a folder: a zero byte, or half of a character, is in it"
    agree(control, problem)
    if not os.access(folder, os.W_OK | os.X_OK):
        problem = (
            f"{option} {folder} cannot be written on rank {control.rank}: it has to be a folder that all ranks see"
        )
    agree(control, problem)


def save(
    control: Control, option: str, folder: str, number: int, facts: Mapping[str, Any], parts: Mapping[str, SnapshotPart]
) -> None:
    """Replace the state in the folder by another, of a higher number than any before. All ranks call it together.

    `facts` are those of rank 0. UsageError on all ranks where the disk does not take it; the old state is then there.
    """
    path, file_name, problem = Path(folder), f"state-{number}-{control.rank}.npz", None
    written: File | None = None
    arrays: dict[str, Any] = {name: part.array for name, part in parts.items()}
    try:
        _write(option, path / file_name, lambda stream: np.savez(stream, **arrays))
        rectangles = {name: (part.y, part.x, *part.array.shape[:2]) for name, part in parts.items()}
        written = File(file_name, digest(path / file_name), rectangles)
    except UsageError as error:
        problem = str(error)
    files = control.gather((written, problem))
    if files is not None:
        problem = next((problem for _, problem in files if problem), None)
        if problem is None:
            problem = _replace(option, path, facts, [file for file, _ in files])
    problem = control.bcast(problem)
    if problem is not None:
        with suppress(OSError):
            (path / file_name).unlink(missing_ok=True)
        raise UsageError(problem)


def _replace(option: str, folder: Path, facts: Mapping[str, Any], files: list[File]) -> str | None:
    """Let the index name these files, then remove those of other states; why not, if it cannot be."""
    state = {"schema": SCHEMA, "files": [vars(file) for file in files], "facts": facts}
    text = json.dumps({"digest": digest_of(state), "state": state}) + "\n"
    try:
        _write(option, folder / INDEX, lambda stream: stream.write(text.encode()))
    except UsageError as error:
        return str(error)
    for path in folder.iterdir():
        if OURS.fullmatch(path.name) and path.name not in {file.name for file in files}:
            with suppress(OSError):  # what cannot be removed is in nobody's way
                path.unlink()
    return None


def _write(option: str, path: Path, write: Callable[[BinaryIO], object]) -> None:
    """As `write_file`, and on the disk before it gets its name. UsageError."""

    def through(stream: BinaryIO) -> None:
        write(stream)
        stream.flush()
        os.fsync(stream.fileno())

    write_file(option, str(path), through)
    with suppress(OSError):  # not every file system lets a folder be synchronised
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
