"""Two generations of one instruction: results as values (`neuronxcc.nki`), or a destination first (`nki`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Signature, signature
from sys import _getframe
from typing import Any

from meshrt.errors import UsageError, nearest
from meshrt.nki.session import PACKAGE, running, session
from meshrt.nki.tensors.tensor import Tensor

IGNORED = (
    "name", "address", "dge_mode", "lazy_initialization", "lowering_config", "unique_indices", "oob_mode", "priority",
)  # fmt: skip


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator of nl: what it does not take is refused, and what says nothing here (IGNORED) left away."""
    allowed = signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs = {key: value for key, value in kwargs.items() if key in allowed.parameters or key not in IGNORED}
        if kwargs.get("mask") is not None:
            of_old()
        return _called(function, allowed, args, kwargs)

    return call


def _called(function: Callable[..., Any], allowed: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What it returns. Raises UsageError for arguments that it does not take."""
    try:
        bound = allowed.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(_told(function.__name__, allowed, kwargs, error)) from None
    return function(*bound.args, **bound.kwargs)


def of_old() -> None:
    """The kernel has used what the new API does not have: masks, index arrays."""
    if (launch := running()) is not None:
        launch.generations.add("old")


def both(tensors: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An instruction `f(dst, ...)` that can be called without dst, and gives its result then.

    tensors: how many tensors the arguments begin with, dst among them: that tells the two apart where dst has no name.
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        allowed = signature(function)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            called_by_kernel = not _getframe(1).f_code.co_filename.startswith(PACKAGE)
            args = tuple(value.settled() if hasattr(value, "settled") else value for value in args)
            kwargs = {
                key: value.settled() if hasattr(value, "settled") else value
                for key, value in kwargs.items()
                if key not in IGNORED
            }
            if "dst" not in kwargs:
                leading = 0
                for value in args:
                    if not isinstance(value, Tensor):
                        break
                    leading += 1
                named = sum(isinstance(kwargs.get(key), Tensor) for key in list(allowed.parameters)[1:tensors])
                if leading + named < tensors or leading == 0:
                    args = (None, *args)
            if called_by_kernel:
                old = "dst" not in kwargs and (not args or args[0] is None)
                session().generations.add("old" if old else "new")
                if kwargs.get("mask") is not None:
                    of_old()
            return _called(function, allowed, args, kwargs)

        return call

    return wrap


def _told(name: str, allowed: Any, kwargs: dict[str, Any], error: TypeError) -> str:
    strange = [key for key in kwargs if key not in allowed.parameters]
    if strange:
        return f"{name} has no argument {strange[0]}=: {nearest(strange[0], allowed.parameters, f'it takes {allowed}')}"
    return f"{name}: {error}; it takes {allowed}"
