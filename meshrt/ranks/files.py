"""Files that a run writes: found out before the work whether they can be, and written whole or not at all."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from meshrt.errors import UsageError

LONGEST_NAME = 240  # bytes of a file's name; systems take 255, some of which go to the temporary name


def check_apart(targets: Mapping[str, str | None]) -> None:
    """UsageError where two options name one file, by option: the later one would take the place of the other."""
    seen: dict[str, str] = {}
    for option, path in targets.items():
        if not path or path == "-" or _is_stream(path):
            continue  # a stream several may be written to
        try:
            other = seen.setdefault(os.path.realpath(path), option)
        except ValueError:  # check_target tells it
            continue
        if other != option:
            raise UsageError(f"{other} and {option} both name {path}: give each a file of its own")


def check_target(option: str, path: str) -> None:
    """UsageError where a file cannot be written there, as far as that shows beforehand."""
    try:
        target = os.path.realpath(path)
    except ValueError as error:  # a zero byte, or half of a character
        raise UsageError(f"{option} {path!r} is no name of a file: {error}") from error
    folder, name = os.path.split(target)
    if not path:
        raise UsageError(f"{option} '' names no file")
    if path == "-":
        raise UsageError(f"{option} - would be a file of that name: name another, or /dev/stdout for standard output")
    if os.path.isdir(target):
        raise UsageError(f"{option} {path} is a folder: name a file in it")
    if _is_stream(path):
        if not os.access(path, os.W_OK):
            raise UsageError(f"{option} {path} cannot be written: you may not")
        return
    if not os.path.isdir(folder):
        raise UsageError(f"{option} {path}: there is no folder {folder}")
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise UsageError(f"{option} {path}: the file's name has more than {LONGEST_NAME} bytes; choose a shorter one")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {path}: the folder {folder} cannot be written")


def _is_stream(path: str) -> bool:
    """Is it there, and no file: a terminal, a pipe, /dev/null? Such are written to and never replaced."""
    return os.path.exists(path) and not os.path.isfile(path)


def write_file(option: str, path: str, write: Callable[[BinaryIO], object]) -> None:
    """Write beside, then rename: a reader sees the whole file or none. UsageError where the disk does not take it."""
    target = Path(path if _is_stream(path) else os.path.realpath(path))  # a link goes on to lead to the file
    beside = target if _is_stream(path) else target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with beside.open("wb") as stream:
            write(stream)
        if beside != target:
            beside.replace(target)
    except BaseException as error:
        with suppress(OSError):
            if beside != target:
                beside.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise UsageError(f"{option} {path} cannot be written: {error.strerror or error}") from error
