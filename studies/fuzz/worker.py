"""The process in which inputs are tried: python -m meshrt.studies.fuzz.worker SCRATCH SEED NUMBER KINDS.

It ends with 0 after a batch of inputs. Anything else is a finding, about the input that lies in the scratch folder: an
exception that is not for users, a crash, more memory than BOUND, or more seconds than PATIENCE. So one that takes the
whole process with it is as good as any other. Whoever started the process saves the folder and starts another.
"""

import faulthandler
import json
import os
import resource
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TypeAlias

from meshrt.ranks.host import prepare_environment

prepare_environment()  # before anything imports numpy

from meshrt.studies.fuzz import imports, lines, mixtures, models, quantized  # noqa: E402
from meshrt.studies.fuzz.models import FuzzCase  # noqa: E402

BATCH = 1000  # inputs of each kind in one process: MPI has some 2000 communicators, and failed runs keep theirs
BOUND = 1 << 30  # bytes of memory beyond those that the process starts with
PATIENCE = 20.0  # seconds for one input
FOUND = 3

FuzzKind: TypeAlias = tuple[Callable[[Random], FuzzCase], Callable[[Path, tuple[str | None, ...]], None]]


def _make_onnx(rng: Random) -> FuzzCase:
    from meshrt.studies.fuzz import graphs  # its libraries are of an extra

    return graphs.make_onnx(rng)


def _import_onnx(folder: Path, arguments: tuple[str | None, ...]) -> None:
    from meshrt.studies.fuzz import graphs

    graphs.import_an_onnx_file(folder, arguments)


KINDS: dict[str, FuzzKind] = {
    "loaders": (models.make_checkpoint, models.read_a_checkpoint),
    "config": (models.make_config, models.read_a_config),
    "mixtures": (mixtures.make_mixture, mixtures.run_a_mixture),
    "quantized": (quantized.make_quantized, quantized.read_a_quantized_folder),
    "gguf": (imports.make_gguf, imports.import_a_gguf),
    "packed": (imports.make_packed, imports.import_a_packed_folder),
    "onnx": (_make_onnx, _import_onnx),
    "tokenizer": (models.make_tokenizer, models.use_a_tokenizer),
    "prompt": (models.make_prompt, models.use_a_prompt),
    "cli": (lines.make_command, lines.run_a_command),
}


def kind_of(number: int, names: Sequence[str]) -> str:
    """The kinds take turns."""
    return names[number % len(names)]


def make(kinds: Mapping[str, FuzzKind], seed: int, number: int, names: Sequence[str]) -> FuzzCase:
    """The input of that number: it depends on nothing else."""
    name = kind_of(number, names)
    return kinds[name][0](Random(f"{seed} {name} {number}"))


def lay(case: FuzzCase, folder: Path, before: FuzzCase) -> None:
    """Write the input's files, in place of those of the one before: what is the same is left there."""
    same = {name for name, data in case.files.items() if before.files.get(name) is data and name not in before.links}
    same -= set(case.links)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in same:
            path.unlink()
    for name in case.files.keys() - same - case.links.keys():
        (folder / name).write_bytes(case.files[name])
    for name, target in case.links.items():
        (folder / name).symlink_to(target)


def work(scratch: Path, seed: int, first: int, names: Sequence[str], kinds: Mapping[str, FuzzKind] = KINDS) -> None:
    """Try inputs from `first` on; leaves the process where something is found."""
    folder, case_file = scratch / "input", scratch / "case.json"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    case = FuzzCase()
    limit_memory()
    with (scratch / "trace.txt").open("w") as trace, (scratch / "number").open("wb", buffering=0) as counter:
        faulthandler.enable(trace)
        last = first + BATCH * len(names)
        for number in range(first, last):
            before, case = case, make(kinds, seed, number, names)  # not watched: it may import libraries
            faulthandler.dump_traceback_later(PATIENCE, exit=True, file=trace)
            os.pwrite(counter.fileno(), number.to_bytes(8, "little"), 0)
            lay(case, folder, before)
            name = kind_of(number, names)
            case_file.write_text(
                json.dumps({"kind": name, "seed": seed, "number": number, "arguments": case.arguments})
            )
            try:
                kinds[name][1](folder, case.arguments)
            except BaseException:
                faulthandler.cancel_dump_traceback_later()
                trace.write(traceback.format_exc())
                trace.flush()
                os._exit(FOUND)
            faulthandler.cancel_dump_traceback_later()
        os.pwrite(counter.fileno(), last.to_bytes(8, "little"), 0)


def limit_memory() -> None:
    """No more address space than now and BOUND: asking for more raises MemoryError, or ends the process."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + BOUND, now + BOUND))


def main(kinds: Mapping[str, FuzzKind] = KINDS) -> None:
    """The command line is `fuzz.Worker`'s."""
    scratch, seed, number, names = sys.argv[1:]
    from meshrt import cli  # noqa: F401 - what the first command line would import
    from meshrt.ranks import host

    host.connect()
    os.chdir(scratch)  # a file name without a folder lands here
    os.environ["XDG_CACHE_HOME"] = scratch
    work(Path(scratch), int(seed), int(number), names.split(","), kinds)


if __name__ == "__main__":
    main()
