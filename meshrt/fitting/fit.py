"""Does it fit? What a program would hold at its fullest core, and the smallest change of the machine that would do.

For compilers and programs that search: `meshrt.fit("llama3-8b", mesh=(660, 660), prompt_tokens=2048)`. Nothing is
computed twice: every answer is the program itself, by shape, with nothing moved (meshrt/mesh/weigh.py).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import ceil, isqrt, prod, sqrt
from pathlib import Path
from time import process_time
from typing import Any

from meshrt.errors import LimitError, UsageError
from meshrt.fitting.weighing import weigh as weigh_elsewhere
from meshrt.given import Own, options_of
from meshrt.machine import find_machine
from meshrt.mesh.devicefile import find_device
from meshrt.mesh.weigh import Weight
from meshrt.mesh.weigh import weigh as weigh_of_mesh
from meshrt.options import in_short, pythons
from meshrt.program import Program, checked_settings
from meshrt.records import dataclass
from meshrt.units import size

HOLDERS = 5  # that are named
LONGEST_CONTEXT = 1 << 20  # tokens that are looked at
MOST_DEVICES = 128  # that are tried, one number after the other
MOST_SIDE = 4096  # cores, of a device that has no limit
SEARCHED = 64 * 64  # cores, of a mesh up to which an error tells what would do
LONGEST_LOOK = 2.0  # seconds of a processor for one look, of some ten, up to which it does
GUESSES = 6  # of a number that fits, before what is left in between is halved
NUMBERS = ("temperature", "logits")  # options that by shape there is nothing for
PROMPTS = ("prompt", "prompts", "prompt_ids", "prompt_tokens")  # options that a context stands for
# Options of a program by which what is alike is done once; of layers two, as the first follows none. Of steps that
# change from one to the next a sample of three has the one in the middle, whose owner is asked from both sides.
SAMPLES = {"layers_run": 2, "steps_run": 3}


@dataclass(frozen=True)
class Fit:
    """What the fullest core would hold, in bytes, and what would do; None where nothing would, or the program has none.

    `mesh` is the smallest with sides as of the mesh that was asked for: one that is a column narrower does not do. On
    GPUs and NeuronCores `devices` are the fewest, as its `option` says (of GPUs, of a group: `--tp`).
    `regions` are the fewest on that mesh, `context` the most tokens that the cache may begin with there.
    """

    fits: bool
    nbytes: int
    limit: int | None
    core: tuple[int, int]
    site: str
    holders: tuple[tuple[str, int], ...]
    asked: tuple[int, int]
    searched: bool
    everywhere: bool  # also on meshes as large as the device
    mesh: tuple[int, int] | None = None
    regions: int | None = None
    context: int | None = None
    machine: str = "mesh"
    place: str = ""  # of another machine: whose memory it is
    option: str = ""  # how many there are
    devices: int | None = None  # the fewest that do

    def to_json(self) -> str:
        """As `meshrt fit --format json` prints it."""
        holders = [{"name": name, "bytes": nbytes} for name, nbytes in self.holders]
        return json.dumps(asdict(self) | {"holders": holders}, indent=1)

    @property
    def nothing(self) -> str:
        """What is said where nothing was found that would do."""
        if self.machine != "mesh":
            return f"no {self.option} up to {MOST_DEVICES} would do" if self.option else "more memory would do"
        return "no mesh of the device would do" if self.everywhere else "`meshrt fit` looks at larger meshes"

    def line(self) -> str:
        """All of it in one line, which ends what is said of memory that is full."""
        at = self.place or f"core {self.core}" + (f" of {self.site}" if self.site else "")
        holders = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in self.holders)
        limit = "" if self.limit is None else f" of {size(self.limit)}"
        held = f"{at} {'holds' if self.fits else 'would hold'} {size(self.nbytes)}{limit} ({holders})"
        mesh = [] if self.mesh is None else [f"--mesh {self.mesh[0]}x{self.mesh[1]}"]
        mesh += [] if self.devices is None or self.devices == self.asked[0] else [f"{self.option} {self.devices}"]
        regions = [] if self.regions is None else [f"--regions {self.regions}"]
        on = f"{self.asked[0]}x{self.asked[1]}" if self.machine == "mesh" else f"{self.option} {self.asked[0]}".strip()
        context = "" if self.context is None else f", up to --context {self.context} on {on}"
        if self.fits:
            return f"fits: {held}" + "".join(f"; so does {way}" for way in mesh) + context
        would = f"{' or '.join(mesh + regions)} would do" if mesh + regions else self.nothing
        return f"does not fit: {held}; {would if self.searched else '`meshrt fit` finds what would do'}{context}"


def fit(program: Own | str | Path, *, on: str | None = None, search: bool = True, **options: Any) -> Fit:
    """What a run of the program with these options, those of `meshrt.run`, would hold, without running it.

    There is no `payload`: it looks at shapes alone. `on` asks for a machine where a program has several. `search` also
    asks for the smallest mesh, or the fewest GPUs or NeuronCores, the fewest regions and the longest context that fit.
    UsageError, LimitError where routing tables are full.
    """
    if not isinstance(search := pythons(search), bool):
        raise UsageError(f"search is {in_short(search)}; it is True or False")
    loaded, arguments, settings = options_of(program, on, options)
    return fitted(loaded, arguments, settings, None if search else 0)


def advice(program: Program, arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """What ends the message of a run that did not fit; only where to ask, if that takes as long as a run by shape."""
    options = {option.name for option in program.options}
    if program.machine != "mesh" and not (find_machine(program.machine).QUICK and "requests" not in options):
        return "`meshrt fit` tells what it would hold, and what would do"
    return fitted(program, arguments, settings, SEARCHED).line()


def fitted(program: Program, arguments: Mapping[str, Any], settings: Mapping[str, Any], most: int | None = None) -> Fit:
    """As `fit`, of a program that is loaded. `most`: cores of a mesh up to which it searches, where so many may do;
    None: of any.
    """
    settings = {
        name: value
        for name, value in checked_settings(program.machine, settings).items()
        if name not in ("maps", "trace", "trace_cores", "trace_links", "goal", "chakra")
    }
    arguments = {
        option.name: arguments[option.name]
        for option in program.options if option.reported and option.name in arguments and option.name not in NUMBERS
    }  # fmt: skip
    weigh_with = _sampled(program, arguments, settings)
    begin = process_time()
    weight = weigh_with(arguments, settings)
    is_long = process_time() - begin > LONGEST_LOOK
    if program.machine != "mesh":
        return _on_devices(program, weigh_with, weight, arguments, settings, most)
    holders = tuple(list(weight.holders.items())[:HOLDERS])
    facts = weight.fits, weight.nbytes, weight.limit, weight.core, weight.site, holders, weight.mesh
    if weight.limit is None:
        return Fit(*facts, False, False)
    if most is not None and (is_long or prod(weight.mesh) * max(1.0, weight.nbytes / weight.limit) > most):
        return Fit(*facts, False, False)
    mesh = _smallest_mesh(
        lambda sides: _try(weigh_with, arguments, {**settings, "mesh": sides}), weight, settings, most
    )
    options = {option.name for option in program.options}
    values = program.complete(arguments)
    regions = context = None
    if "regions" in options and not weight.fits:
        regions = _fewest_regions(weigh_with, arguments, settings, weight)
    if "context" in options and values.get("context") is not None:
        context = _longest_context(weigh_with, arguments, settings)
    return Fit(*facts, True, most is None, mesh, regions, context)


Weigh = Callable[[Mapping[str, Any], Mapping[str, Any]], Weight]


def _on_devices(
    program: Program, weigh_with: Weigh, weight: Weight, arguments: Mapping[str, Any], settings: Mapping[str, Any],
    most: int | None,
) -> Fit:  # fmt: skip
    """`fitted`, of a machine whose devices have a memory each, or all together one."""
    holders = tuple(list(weight.holders.items())[:HOLDERS])
    kind = find_machine(program.machine)
    word, several = kind.SHARED["size"], not kind.ONE_MEMORY
    sides = settings.get(word) or program.mesh[0], 1  # not what they are in all, with stages and replicas
    facts = weight.fits, weight.nbytes, weight.limit, weight.core, "", holders, sides
    about: dict[str, Any] = {"machine": program.machine, "place": weight.site, "option": f"--{word}" if several else ""}
    if most == 0:
        return Fit(*facts, False, False, **about)
    devices = context = None
    if several:
        fitting = (
            count for count in range(1, MOST_DEVICES + 1)
            if (trial := _try(weigh_with, arguments, {**settings, word: count})) is not None and trial.fits
        )  # fmt: skip
        devices = next(fitting, None)
    names = {option.name for option in program.options}
    if kind.QUICK and most is None and "context" in names and program.complete(arguments).get("context") is not None:
        context = _longest_context(weigh_with, arguments, settings)
    return Fit(*facts, True, most is None, devices=devices, context=context, **about)


def _sampled(program: Program, arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> Weigh:
    """`weigh`, with layers and steps that are alike done once. Layers whose experts are drawn are not."""
    names = {option.name for option in program.options}
    sample = {name: value for name, value in SAMPLES.items() if name in names and arguments.get(name) is None}
    weigh = weigh_of_mesh if program.machine == "mesh" else weigh_elsewhere

    def weigh_with(arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> Weight:
        nonlocal sample
        try:
            weight = weigh(program, program.complete({**arguments, **sample}), settings)
            if "experts" not in weight.result or "layers_run" not in sample:
                return weight
            sample = {name: value for name, value in sample.items() if name != "layers_run"}
            return weigh(program, program.complete({**arguments, **sample}), settings)
        except UsageError:
            if not sample:
                raise
            weight = weigh(program, program.complete(arguments), settings)  # it was the sample, or raises as well
            sample = {}
            return weight

    return weigh_with


def _try(weigh_with: Weigh, arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> Weight | None:
    """None where it cannot be at all: sizes that no program takes, or full routing tables."""
    try:
        return weigh_with(arguments, settings)
    except (UsageError, LimitError):
        return None


def _smallest_mesh(
    try_mesh: Callable[[tuple[int, int]], Weight | None], given: Weight, settings: Mapping[str, Any],
    cores: int | None,
) -> tuple[int, int] | None:  # fmt: skip
    """The narrowest mesh of these proportions that fits, up to the device's; one that is a column narrower does not."""
    width, height = given.mesh
    device = find_device(settings.get("device", "wse2"))
    tallest = device.height or MOST_SIDE
    most = min(device.width or MOST_SIDE, max(1, tallest * width // height))
    if cores is not None:
        most = min(most, max(width, isqrt(cores * width // height)))

    def sides(narrow: int) -> tuple[int, int]:
        return narrow, max(1, min(round(narrow * height / width), tallest))

    def room(narrow: int) -> int | None:
        weight = given if narrow == width else try_mesh(sides(narrow))
        return None if weight is None or weight.limit is None else weight.limit - weight.nbytes

    fitting = _first(room, 1, most, width, lambda at, left: at * sqrt(max(0.01, 1 - left / (given.limit or 1))))
    return None if fitting is None else sides(fitting)


def _fewest_regions(
    weigh_with: Weigh, arguments: Mapping[str, Any], settings: Mapping[str, Any], given: Weight
) -> int | None:
    """The fewest regions of that mesh that fit, of as many as the device and the layers have room for."""
    device = find_device(settings.get("device", "wse2"))
    width, height = given.mesh
    most = ((device.width or MOST_SIDE) // width) * ((device.height or MOST_SIDE) // height)

    without, having = 1, None
    while having is None or having - without > 1:
        regions = 2 * without if having is None else (without + having) // 2
        weight = None if regions > most else _try(weigh_with, {**arguments, "regions": regions}, settings)
        if weight is None and having is None:  # more than there are layers, or room
            return None
        if weight is not None and weight.fits:
            having = regions
        else:
            without = regions
    return having


def _longest_context(weigh_with: Weigh, arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> int | None:
    """The most tokens that the cache may begin with; None where one is too many already."""
    others = {name: value for name, value in arguments.items() if name not in PROMPTS}

    def room(context: int) -> int | None:
        weight = _try(weigh_with, {**others, "context": context}, settings)
        if weight is None or weight.limit is None:
            return None
        return min(weight.limit - weight.nbytes, -1 if weight.refused else weight.limit)

    shortest = room(1)
    if shortest is None or shortest < 0:
        return None

    def lacks(context: int) -> int | None:
        left = room(context)
        return 0 if left is None else -left - 1  # the first that does not fit, or is no context at all, is looked for

    too_long = _first(lacks, 1, LONGEST_CONTEXT, 1024, lambda at, left: 2.0 * at)
    return LONGEST_CONTEXT if too_long is None else too_long - 1 or None


def _first(
    room: Callable[[int], int | None], low: int, high: int, start: int, guess: Callable[[int, int], float]
) -> int | None:
    """The first number of low to high with room (0 or more), taken that room grows; None where the last has none.

    It begins at `start`, goes on as `guess` says from a number and its room, and halves what is left in between.
    """
    without, having = low - 1, high + 1
    at, tries = min(max(start, low), high), 0
    while having - without > 1:
        left, tries = room(at), tries + 1
        if left is not None and left >= 0:
            having = at
        else:
            without = at
        near = guess(at, left) if left is not None and tries <= GUESSES else (without + having) / 2
        at = min(max(ceil(near), without + 1), max(having - 1, without + 1))
    return having if having <= high else None
