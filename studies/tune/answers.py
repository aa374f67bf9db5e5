"""Answers of the autotuner, kept in the user's cache folder, a file for each question; `run --tuned` reads them."""

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, fields
from hashlib import sha256
from math import log
from pathlib import Path
from typing import Any

from meshrt import __version__
from meshrt.errors import LimitError, MeshrtError, UsageError
from meshrt.mesh.device import Device
from meshrt.mesh.mesh import parse_mesh
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.errors import ModelError
from meshrt.models.family import check_plain, family_of
from meshrt.ranks.console import Console
from meshrt.ranks.files import write_file
from meshrt.studies.tune.printed import groups, phase_cores, reasons
from meshrt.studies.tune.search import Space, tune
from meshrt.studies.tune.trials import Question

CHOSEN = {
    "regions": 1,
    "decode_mesh": None,
    "decode_regions": None,
    "head_groups": None,
    "phases": 2,
    "decode_phases": None,
}


def folder() -> Path:
    """Where answers are kept: meshrt/tuned in $XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "meshrt" / "tuned"


def make_question(
    model: str, device: Device, prompt_tokens: int, new_tokens: int, kv: str, dtype: str | None,
    layers_run: int | None = None,
) -> Question:  # fmt: skip
    """A question about a packaged model or a Hugging Face folder. Large models run one layer unless told otherwise."""
    folder = find_model(model)
    config = read_config(folder)
    check_plain(family_of(config), folder, "`meshrt tune`")
    if layers_run is None and config.hidden_size >= 1024:
        layers_run = 1
    if layers_run is not None and layers_run >= config.layers:
        layers_run = None  # all of them
    return Question(
        model, config, device, prompt_tokens, new_tokens, kv, dtype or config.dtype or "float32", layers_run
    )


def subject(question: Question) -> dict[str, Any]:
    """What an answer is about but the lengths: those of other lengths may still be of use, others are not."""
    device = {key: value for key, value in asdict(question.device).items() if key != "sources"}
    about = {"config": asdict(question.config), "device": device, "kv": question.kv, "dtype": question.dtype}
    read: dict[str, Any] = json.loads(json.dumps({**about, "version": __version__}))
    return read


def path_of(question: Question, space: Space) -> Path:
    """The file of an answer; a search that was restricted has one of its own."""
    lengths = (question.prompt_tokens, question.new_tokens, question.layers_run)
    key = json.dumps([subject(question), lengths, asdict(space)], sort_keys=True)
    return folder() / f"{_stem(question)}-{sha256(key.encode()).hexdigest()[:16]}.json"


def _stem(question: Question) -> str:
    return re.sub(r"[^\w.-]+", "_", f"{find_model(question.model).resolve().name}-{question.device.name}")


def make_folder() -> None:
    """Make sure that an answer can be kept, before hours are spent on it. UsageError."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        if not os.access(folder(), os.W_OK):
            raise PermissionError(13, "not allowed")
    except OSError as error:
        raise UsageError(
            f"answers cannot be kept in {folder()}: {error.strerror}; set XDG_CACHE_HOME to another folder"
        ) from error


def keep(question: Question, space: Space, report: Mapping[str, Any]) -> None:
    """Write an answer, all of it or nothing."""
    contents = {"subject": subject(question), "told": {key: value for key, value in report.items() if key != "host"}}
    path = path_of(question, space)
    write_file(
        "the tuned answer", str(path), lambda stream: stream.write((json.dumps(contents, indent=1) + "\n").encode())
    )


def recall(question: Question, space: Space) -> tuple[dict[str, Any] | None, str | None]:
    """(the answer that was kept or None, what is wrong with its file or None)."""
    path = path_of(question, space)
    if not path.exists():
        return None, None
    contents = _read(path)
    if contents is None or contents["subject"] != subject(question):
        return None, f"{path} is damaged"
    report: dict[str, Any] = contents["told"]
    return report, None


def answer(comm: Any, console: Console, question: Question, space: Space, again: bool = False) -> dict[str, Any]:
    """The report of `tune`, on all ranks: the one that was kept, unless `again`, or a new one, which is kept then.

    Rank 0 reads and writes. UsageError.
    """
    recalled: tuple[dict[str, Any] | None, str | None] | MeshrtError = (None, None)
    if comm.rank == 0:
        try:
            make_folder()
            recalled = (None, None) if again else recall(question, space)
        except MeshrtError as error:
            recalled = error
    recalled = comm.bcast(recalled)
    if isinstance(recalled, MeshrtError):
        raise recalled
    report, damage = recalled
    if report is not None:
        console.text(f"cached: {path_of(question, space)}; --again measures anew\n")
        return {**report, "host": {"ranks": comm.size, "cached": True}}
    if damage:
        console.text(f"{damage}: tuning again\n")
    report = tune(comm, console, question, space)
    report["why"] = reasons(report)
    report["host"]["cached"] = False
    if report["choice"] is not None and comm.rank == 0:
        keep(question, space, report)
    return report


def check_found(report: Mapping[str, Any]) -> None:
    """LimitError where no candidate fits."""
    if report["choice"] is None:
        last = [
            candidate["refused"] for candidate in (*report["candidates"], *report["pairs"]) if candidate["refused"]
        ][-1]
        raise LimitError(
            f"none of {len(report['candidates'])} candidates lets {report['model']} answer"
            f" {report['prompt_tokens']} prompt tokens with {report['new_tokens']} new ones on"
            f" {report['device']['name']}; the last: {last}. Raise --core-memory, lower --prompt-tokens, or try"
            " other --sides and --regions"
        )


def _read(path: Path) -> dict[str, Any] | None:
    """A kept answer; None for a file that is none."""
    try:
        contents: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        report = contents["told"]
        sound = isinstance(contents["subject"], dict) and all(
            isinstance(report[name], list) for name in ("candidates", "why")
        )
        sound = sound and min(report["prompt_tokens"], report["new_tokens"]) > 0 and report["cycles"]["total"] > 0
        parse_mesh(report["choice"]["mesh"])
        return contents if sound and set(CHOSEN) <= set(report["choice"]) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, UsageError):
        return None


# --------------------------------------------------------------------------------------------------- run --tuned


def apply(
    comm: Any, console: Console, arguments: dict[str, Any], mesh: str | None, device: Device,
    machine: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of a run of llama with `mesh` and what else was tuned, from the nearest answer. All ranks call it.

    Rank 0 reads, so that all have the same answer or the same error. `machine`: the options that the device is made of,
    for the message where nothing is tuned. UsageError, ModelError.
    """
    if arguments["system"] != "waferllm":
        raise UsageError(f"--tuned is for waferllm; --system {arguments['system']} was not tuned: leave it away")
    if arguments.get("as_published"):
        raise UsageError("--tuned is for programs as they are; --as-published was not tuned: leave one of them away")
    chosen: dict[str, Any] | MeshrtError | ModelError | None = None
    if comm.rank == 0:
        try:
            chosen = nearest(arguments, mesh, device, machine)
        except (MeshrtError, ModelError) as error:
            chosen = error
    chosen = comm.bcast(chosen)
    if not isinstance(chosen, dict):
        assert chosen is not None
        raise chosen
    choice = chosen["choice"]
    prefill_cores, decode_cores = phase_cores(choice)
    console.text(
        f"tuned for {chosen['prompt_tokens']} prompt tokens and {chosen['new_tokens']} new ones: prefill on"
        f" {prefill_cores} cores, decode on {decode_cores}, heads in {groups(choice)}, K = {choice['phases']} and"
        f" {choice['decode_phases']}\n"
    )
    if arguments["context"]:  # there is no prefill: the run is on decode's cores
        choice = choice | {
            "mesh": choice["decode_mesh"] or choice["mesh"], "decode_mesh": None,
            "regions": choice["decode_regions"] or choice["regions"], "decode_regions": None,
        }  # fmt: skip
    return {**arguments, **choice}


def nearest(
    arguments: Mapping[str, Any], mesh: str | None, device: Device, machine: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The answer whose lengths are nearest to those of a run, by the logarithms of their ratios; of several the
    faster one.
    """
    set_by_user = [name for name, default in CHOSEN.items() if arguments[name] != default]
    for name in (["mesh"] if mesh else []) + set_by_user:
        raise UsageError(f"--tuned chooses --{name.replace('_', '-')} itself: leave out one of the two")
    model = arguments["model"]
    question = make_question(
        model, device, length_of_prompt(arguments), arguments["max_new_tokens"], arguments["kv"], arguments["dtype"]
    )
    about = subject(question)
    damaged, answers = [], []
    for path in sorted(folder().glob(f"{_stem(question)}-*.json")):
        contents = _read(path)
        if contents is None:
            damaged.append(str(path))
        elif contents["subject"] == about:
            answers.append(contents["told"])
    if not answers:
        other = f" ({', '.join(damaged)} cannot be read)" if damaged else ""
        raise UsageError(
            f"nothing is tuned for {model} on {device.name} with these limits, --kv {question.kv} and --dtype"
            f" {question.dtype}{other}: `{_command(question, arguments, machine or {'device': device.name})}` does it"
        )

    def distance(report: dict[str, Any]) -> float:
        lengths = (("prompt_tokens", question.prompt_tokens), ("new_tokens", question.new_tokens))
        return sum(abs(log(report[name] / max(1, length))) for name, length in lengths)

    return min(answers, key=lambda report: (distance(report), report["cycles"]["total"]))


def _command(question: Question, arguments: Mapping[str, Any], machine: Mapping[str, Any]) -> str:
    """What tunes for such a run."""
    options = {
        "prompt_tokens": question.prompt_tokens, "new_tokens": question.new_tokens, **machine,
        "kv": None if question.kv == "shift" else question.kv, "dtype": arguments["dtype"],
    }  # fmt: skip
    given = {f"--{name.replace('_', '-')}": str(value) for name, value in options.items() if value is not None}
    return shlex.join(["meshrt", "tune", question.model, *(word for pair in given.items() for word in pair)])


def length_of_prompt(arguments: Mapping[str, Any]) -> int:
    """Tokens before the first new one, as the run will read them; of several prompts the mean.

    UsageError, ModelError.
    """
    from meshrt.programs.generation.given import INPUT
    from meshrt.programs.generation.options import GenerationOptions
    from meshrt.programs.generation.prompt import read_prompt
    from meshrt.programs.generation.several import read_prompts
    from meshrt.ranks.alone import Alone
    from meshrt.ranks.board import Board
    from meshrt.ranks.control import Control

    options = GenerationOptions(
        **{field.name: arguments[field.name] for field in fields(GenerationOptions) if field.name in arguments}
    )
    for name in ("prompt", "prompts"):
        if getattr(options, name) == INPUT:
            raise UsageError(
                f"--tuned chooses by the length of the prompt, before standard input is read: give --{name} a file"
                f" ({'@' if name == 'prompt' else ''}FILE), or leave --tuned away"
            )
    folder, control = find_model(options.model), Control(Alone(), Board.alone(), "tuned")
    vocabulary = read_config(folder).vocab_size
    if options.prompts is None:
        return len(read_prompt(control, folder, vocabulary, options))
    prompts = read_prompts(control, folder, vocabulary, options)
    return round(sum(map(len, prompts)) / len(prompts))
