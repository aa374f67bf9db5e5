"""What can go wrong, each kind with the exit code that the command line returns for it."""

from collections.abc import Callable, Iterable


class MeshrtError(Exception):
    """Base of all errors with a message for the user: what happened, the limit, the way out."""

    exit_code = 1


class ProgramError(MeshrtError):
    """A user's own program has raised an exception: told with its line, without meshrt's frames."""


class UsageError(MeshrtError):
    """The command line, a program's arguments or an input file is wrong."""

    exit_code = 2


class LimitError(MeshrtError):
    """The program asked the machine for more than it has: core memory or route entries."""

    exit_code = 3


class FullError(LimitError):
    """A core or a device has no room for what it is to hold. `advice` makes what else helps: it is told last, once."""

    advice: Callable[[], str] | None = None


def in_full(error: MeshrtError) -> str:
    """The message, and what it is told with last: for those that go on after it."""
    return "; ".join([str(error), *told(error)])


def told(error: BaseException) -> list[str]:
    """The advice of an error, if it has one that can be given."""
    try:
        return [error.advice()] if isinstance(error, FullError) and error.advice is not None else []
    except (MeshrtError, MemoryError):
        return []


class RouteError(MeshrtError):
    """A packet met a router that has no rule for it, or whose rule leads off the mesh, nowhere or round and round; or
    a table was to be written, or routes to be used, behind the fabric's back."""

    exit_code = 3


class MpiError(MeshrtError):
    """MPI is missing, or does not match what started the ranks."""

    exit_code = 4


class StallError(MeshrtError):
    """No rank makes progress: a deadlock, or ranks whose programs diverged."""

    exit_code = 124


class MissingName(UsageError, AttributeError):
    """A name that a module or a tensor does not have: for Python, whose hasattr asks so, an AttributeError."""


def nearest(name: str, names: Iterable[str], otherwise: str) -> str:
    """The end of a message on a name that there is not: the names that are most like it, or what else helps."""
    from difflib import get_close_matches  # 5 ms, for those who mistype

    plain = {candidate.casefold(): candidate for candidate in sorted(names)}
    near = [plain[key] for key in get_close_matches(name.casefold(), plain, 3, 0.6)]
    return f"did you mean {' or '.join(near)}?" if near else otherwise
