"""`nki.compiler`: hints for AWS's compiler, which change nothing here: addresses are not modelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from meshrt.nki.tensors.allocation import Memory


def _free(memory: str) -> Callable[..., Memory]:
    def alloc(*_: Any, **__: Any) -> Memory:
        """The memory alone: addresses, banks and how many tiles take turns are not modelled."""
        return Memory(memory)

    return alloc


sbuf = SimpleNamespace(mod_alloc=_free("sbuf"), alloc=_free("sbuf"), auto_alloc=_free("sbuf"))
psum = SimpleNamespace(mod_alloc=_free("psum"), alloc=_free("psum"), auto_alloc=_free("psum"))


def _hint(*args: Any, **_: Any) -> Any:
    """A decorator, with options or without, that leaves the kernel as it is."""
    return args[0] if len(args) == 1 and callable(args[0]) else lambda kernel: kernel


skip_middle_end_transformations = enable_stack_allocator = force_auto_alloc = _hint


def multi_buffer(*_: Any, **__: Any) -> None:
    """How many buffers the compiler is to use: here as many as the program refers to."""


@contextmanager
def no_reorder() -> Iterator[None]:
    """The program's order, which holds here anyway."""
    yield
