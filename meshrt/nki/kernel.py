"""Kernels: how a function becomes one, and how it is launched on arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import update_wrapper
from math import prod
from os import PathLike, fspath
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np

from meshrt.errors import MeshrtError, ProgramError, UsageError
from meshrt.neuron.device import NeuronDevice, find_neuron_device
from meshrt.neuron.dtypes import rounded, to_raw
from meshrt.nki import isa, language
from meshrt.nki.dtypes import tile_dtype
from meshrt.nki.grids import nc, spmd_dim
from meshrt.nki.instructions.moves import new_tile
from meshrt.nki.report import measured, shown
from meshrt.nki.session import PACKAGE, Session, opened, running
from meshrt.nki.tensors.index import whole
from meshrt.nki.tensors.tensor import Tensor
from meshrt.nki.timeline import write_timeline
from meshrt.ranks.files import check_target
from meshrt.records import dataclass


@dataclass(frozen=True)
class LaunchOptions:
    """How a kernel is launched. `cores` deals a grid of one axis over so many; `trace` is a file for the timeline.

    `reorder`: each engine takes its instructions in the order that suits it, not in the kernel's (neuron/timeline.py).
    """

    device: str | NeuronDevice = "trn1"
    grid: tuple[Any, ...] = ()
    cores: int = 1
    show: bool = True
    trace: str | PathLike[str] | None = None
    reorder: bool = False


class Kernel:
    """A function of tensors. Called with arrays it is launched; called in a kernel it is a part of that one."""

    def __init__(self, function: Callable[..., Any], how: LaunchOptions) -> None:
        self.function = function
        self.how = how
        self.report: dict[str, Any] | None = None  # of the last launch
        update_wrapper(self, function)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        axes = grid if isinstance(grid, tuple) else (grid,)

        def launch(*args: Any, **kwargs: Any) -> Any:
            return self.launch(replace(self.how, grid=axes), args, kwargs)

        launch.kernel, launch.grid = self, axes  # type: ignore[attr-defined]  # for simulate
        return launch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.launch(self.how, args, kwargs)

    def launch(self, how: LaunchOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The kernel's results as arrays, in its tensors' dtypes. UsageError, LimitError, with FILE:LINE first."""
        if running() is not None:
            if how.grid:
                raise UsageError(
                    f"{self.function.__name__} has a grid, {how.grid}, and is called in a kernel, which has one of its "
                    "own: launch it from outside, or call it without"
                )
            return self.function(*args, **kwargs)
        _check(how)
        grid, spread = _grid(how)
        structs = [value for value in (*args, *kwargs.values()) if _is_shape(value)]
        try:
            device = find_neuron_device(how.device)
        except MeshrtError as error:
            raise type(error)(f"{_begin(self.function)}: {error}") from None
        launch = Session(device, language, isa, grid, spread, payload=not structs, reorder=how.reorder)
        if how.trace:
            for core in launch.cores:
                core.trace = []
        with opened(launch):
            passed: list[tuple[np.ndarray, Tensor]] = []
            args = tuple(_received(value, passed) for value in args)
            kwargs = {key: _received(value, passed) for key, value in kwargs.items()}
            try:
                results = None
                for number in range(prod(grid)):
                    launch.begin(tuple(int(at) for at in np.unravel_index(number, grid)))
                    results = self.function(*args, **kwargs)
                    launch.core.settle()
                returned = _returned(results)
                _write_back(passed)
                if results is None and not any(_written(tensor) for _, tensor in passed):
                    launch.notes[f"{_begin(self.function)}: nothing is returned, and no argument written to"] = None
            except MeshrtError as error:
                raise type(error)(f"{_where(error, self.function)}: {error}") from None
            except (TypeError, AttributeError, IndexError, ValueError, KeyError) as error:
                if not extract_tb(error.__traceback__)[-1].filename.startswith(PACKAGE):
                    of = getattr(error, "obj", None)
                    if isinstance(of, list | tuple | str) and any(of is value for value in (*args, *kwargs.values())):
                        kind, where = type(of).__name__, _where(error, self.function)
                        raise UsageError(
                            f"{where}: an argument is a {kind}, which is no tensor: give an array"
                        ) from None
                    raise
                raise ProgramError(f"{_where(error, self.function)}: {type(error).__name__}: {error}") from error
            self.report = measured(launch)
        if how.trace:
            write_timeline(launch, fspath(how.trace))
        if how.show:
            print(shown(self.function.__name__, launch, self.report), file=sys.stderr)
        return returned


def jit(function: Any = None, **options: Any) -> Any:
    """A kernel. `platform_target` is the device; other options are the compiler's, which is not there."""
    if function is None:
        return lambda decorated: jit(decorated, **options)
    target = str(options.get("platform_target", "trn1"))
    return Kernel(getattr(function, "function", function), LaunchOptions(target))


def simulate(kernel: Any, **options: Any) -> Callable[..., Any]:
    """A kernel as a call that runs it: `simulate(kernel)(a, b)`; device=, grid=, cores= and so on: LaunchOptions."""
    if not callable(kernel):
        raise UsageError(f"simulate takes a kernel and gives a call that takes its arguments, not {kernel!r:.80}")
    of = getattr(kernel, "kernel", kernel)  # that of kernel[grid]
    jitted = of if isinstance(of, Kernel) else jit(kernel)
    grid = options.pop("grid", getattr(kernel, "grid", jitted.how.grid))
    try:
        how = replace(jitted.how, grid=grid if isinstance(grid, tuple) else (grid,), **options)
    except TypeError:
        strange = ", ".join(key for key in options if not hasattr(jitted.how, key))
        raise UsageError(f"simulate takes device, grid, cores, show, trace and reorder, not {strange}") from None

    def run(*args: Any, **kwargs: Any) -> Any:
        return jitted.launch(how, args, kwargs)

    return run


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """The same of the old API: kernel and arguments together; kernel may have its grid."""
    return kernel(*args, **kwargs)


def _check(how: LaunchOptions) -> None:
    """UsageError for options that are of another kind, or a file that cannot be written."""
    for name, value in (("show", how.show), ("reorder", how.reorder)):
        if not isinstance(value, bool | np.bool_):
            raise UsageError(f"{name}= is {value!r}; it is True or False")
    if how.trace:
        if not isinstance(how.trace, str | PathLike):
            raise UsageError(f"trace= is {how.trace!r}; it names a file for the timeline")
        check_target("trace=", fspath(how.trace))


def _grid(how: LaunchOptions) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The programs along each axis, and the cores that they are dealt over."""
    axes = [(axis * 1 if isinstance(axis, nc) else axis) for axis in how.grid]
    sizes = [axis.sizes if isinstance(axis, spmd_dim) else (whole("an axis of a grid", axis), 1) for axis in axes]
    if (over := whole("cores=", how.cores)) < 1:
        raise UsageError(f"cores= is {over}; it starts at 1")
    if over > 1:
        if len(sizes) != 1:
            raise UsageError(f"cores= deals a grid of one axis, as in kernel[{over}], not of {len(sizes)}")
        sizes = [(sizes[0][0], over)]
    if any(size < 1 or size % cores for size, cores in sizes):
        raise UsageError(
            f"a grid of {[size for size, _ in sizes]} over {[cores for _, cores in sizes]} cores: each axis has at "
            "least one program, and as many on each core"
        )
    return tuple(size for size, _ in sizes), tuple(cores for _, cores in sizes)


def _is_shape(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not hasattr(value, "__array__")


def _received(value: Any, passed: list[tuple[np.ndarray, Tensor]]) -> Any:
    """An argument as the kernel has it: arrays are tensors of HBM, also in lists, tuples and dictionaries.

    passed: takes each array and its tensor, for what the kernel writes to it.
    """
    if isinstance(value, tuple | list | dict):
        return _each(value, lambda item: _received(item, passed))
    if isinstance(value, np.generic) or not hasattr(value, "shape") or isinstance(value, type):
        return value
    array = None if _is_shape(value) else np.asarray(value)
    if array is not None and not array.ndim:
        return value
    shape, dtype = (tuple(value.shape), value.dtype) if array is None else (array.shape, array.dtype)
    if str(dtype) == "float64":
        raise UsageError(f"an argument of shape {list(shape)} is float64, which no tensor is: give it as float32")
    if 0 in shape:
        raise UsageError(f"an argument of shape {list(shape)} has no elements: every axis needs a size")
    if str(dtype) == "int64":
        dtype = np.dtype(np.int32)
        if array is not None and (array != array.astype(dtype)).any():
            raise UsageError(f"an argument of shape {list(shape)} is int64, and {_beyond(array)} is beyond int32")
    tensor = new_tile("hbm", shape, tile_dtype(dtype))
    assert tensor.home is not None
    store = tensor.home.store
    if array is not None:
        if store.buffer.payload:
            store.data[...] = rounded(array.astype(dtype, copy=False), tensor.dtype)
        passed.append((array, tensor))
    store.full = True
    return tensor


def _beyond(array: np.ndarray) -> int:
    return int(array[array != array.astype(np.int32)][0])


def _each(values: Any, function: Callable[[Any], Any]) -> Any:
    """A tuple, a list or a dictionary of what a function makes of each."""
    if isinstance(values, dict):
        return {key: function(value) for key, value in values.items()}
    made = [function(value) for value in values]
    return type(values)(*made) if hasattr(values, "_fields") else type(values)(made)


def _returned(results: Any) -> Any:
    """What a kernel gives back as arrays. UsageError for what nobody wrote."""
    if isinstance(results, tuple | list | dict):
        return _each(results, _returned)
    if not isinstance(results, Tensor):
        return results
    results.settle()
    assert results.home is not None
    if results.buffer.on_chip:
        raise UsageError(f"a kernel returns tensors of nl.shared_hbm, not of {results.buffer.name}: store it first")
    store = results.home.store
    if not store.full and (store.mask is None or not results.pattern.view(store.mask).all()):  # type: ignore[union-attr]  # no mask: the first half was true
        written = 0 if store.mask is None else int(store.mask.sum())
        raise UsageError(
            f"the output that {results.home.line} allocates was not written: {written} of {store.data.size} elements "
            "were; store to all of it"
        )
    return results.data if store.buffer.payload else None


def _written(tensor: Tensor) -> bool:
    return tensor.home is not None and bool(tensor.home.store.writes)


def _write_back(passed: list[tuple[np.ndarray, Tensor]]) -> None:
    """What a kernel has written to its arguments, in the caller's arrays. UsageError where these cannot be written."""
    for array, tensor in passed:
        assert tensor.home is not None
        store = tensor.home.store
        if not _written(tensor) or not store.buffer.payload:
            continue
        if not array.flags.writeable:
            raise UsageError(
                f"the kernel writes to its argument of shape {list(array.shape)}, which is read-only: give a copy of "
                "it, or return a tensor of nl.shared_hbm"
            )
        array[...] = to_raw(store.data, store.dtype).reshape(array.shape)


def _where(error: BaseException, function: Callable[..., Any]) -> str:
    """FILE:LINE of the author's own innermost frame, or that which asked for a result that was made later."""
    if line := getattr(error, "line", ""):
        return str(line)
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(PACKAGE)]
    if not frames:
        return _begin(function)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"


def _begin(function: Callable[..., Any]) -> str:
    """FILE:LINE where a kernel begins."""
    code = function.__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"
