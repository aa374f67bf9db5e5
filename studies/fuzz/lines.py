"""Command lines to fuzz with: every option of the programs and of the commands that are soon done, and what runs them.

Sizes are small, or so large that no machine has them; what is merely long (a million steps) is a user's good right and
not tried.
"""

import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from random import Random
from unittest import mock

import click

from meshrt.studies.fuzz.mixtures import make_mixture, valid_mixture
from meshrt.studies.fuzz.models import TEXTS, FuzzCase, make_checkpoint, make_config, valid_model
from meshrt.studies.fuzz.mutate import INTEGERS, VALUES, mutated_json
from meshrt.studies.fuzz.quantized import make_quantized

# What keeps a run of a program small; the options that are tried come behind and win.
SMALL = {
    "gemm": "--m 5 --k 4 --n 3 --mesh 2x2",
    "gemv": "--k 5 --n 4 --mesh 2x2",
    "shift": "--tile 2 --steps 2 --mesh 2x2",
    "allreduce": "--size 4 --mesh 2x2",
    "kvcache": "--mesh 2x2 --tokens 4 --head-dim 4",
    "llama": "--model {folder} --mesh 2x2 --max-new-tokens 2 --prompt-ids 1,2",
    "llama --on neuron": "--model {folder} --max-new-tokens 2 --prompt-ids 1,2",
    "llama --on arm": "--model {folder} --max-new-tokens 2 --prompt-ids 1,2",
    "linear": "--m 3 --k 40 --n 9",
    "llama --on gpu": "--model {folder} --max-new-tokens 2 --prompt-ids 1,2",
    "xuv": "--m 4 --k 4 --r 2 --n 4",
    "lowrank": "--model {folder} --max-new-tokens 2 --prompt-ids 1,2",
    "serve": "--model {folder} --requests 2 --prompt-tokens 3 --output-tokens 2",
    "dispatch": "--mesh 2x2 --tokens 2 --experts 2",
}
MALFORMED = (make_config, make_checkpoint, make_mixture, make_quantized)
LONG = {"times", "steps", "tokens", "max_new_tokens", "tile", "static"}  # large numbers of these are merely long
PATHS = ("-", "", "{folder}", "{folder}/out", "/nonexistent/x", "{folder}/no/x", "x" * 300, "a/b", "..")
MESHES = (
    "1x1", "2x2", "3x2", "1x4", "4x1", "0x0", "2", "x", "2x", "-1x2", "2x2x2", "\u0662x\u0662", "751x1", "9999x9999",
    "9999999x1", "1000000x1000000", "9" * 5000 + "x1", "1e1x1", "2X2",
)  # fmt: skip
LISTS = ("1,2", "1", "", ",", "1,,2", "24", "1 2", "-1", "\u0661", "9" * 30, "1.5", "0", ",".join(["1"] * 5000))
NUMBERS = ("0", "1", "2", "3", "5", "-1", "", "x", "1.0", "\u0663", "1_0", " 3 ", "+4", "0x10", "nan", "9" * 5000)
FLOATS = ("0", "0.5", "1", "-1", "nan", "inf", "1e-320", "1e308", "1e999", "x", "", "0.1")
HUGE = tuple(str(number) for number in INTEGERS if number > 10**9 or number < 0)
TEXT_VALUES = tuple(str(value) for value in VALUES if isinstance(value, (str, float, int)) and value != 10**400)
WORDS = (
    "--help",
    "-h",
    "--",
    "-",
    "--no-such",
    "run",
    "gemm",
    "--mesh",
    "=",
    "--json",
    "x" * 3000,
    "\ud800",
    "{folder}",
)
BOUNDS = (
    "hops=2",
    "hops<1",
    "hops~N",
    "memory~1",
    "hops=nan",
    "hops=inf",
    "hops~N^nan",
    "hops",
    "=",
    "x=1",
    "hops~N^(1/0)",
)
TERMS = (
    "N",
    "2*N",
    "N//2",
    "1/0",
    "9" * 400 + "/3",
    "1e308*1e308",
    "nan",
    "N**2",
    "(" * 300,
    "-N",
    "1.5",
    "True",
    "'a'*9",
)


@cache
def options(program: str) -> tuple[click.Option, ...]:
    """Those of `meshrt run PROGRAM`; on several machines a program has different ones."""
    from meshrt.commands.run import command

    name, _, on = program.partition(" --on ")
    context = click.Context(command)
    context.params["on"] = on or None
    assert isinstance(command, click.Group)
    subcommand = command.get_command(context, name)
    assert subcommand is not None
    return tuple(
        parameter for parameter in subcommand.params if isinstance(parameter, click.Option) and parameter.name != "help"
    )


def value_of(rng: Random, option: click.Option) -> str:
    """A value for an option: valid, at a limit, beyond it, or of another kind."""
    name, kind = option.name or "", option.type
    if isinstance(kind, click.Choice):
        return rng.choice((*map(str, kind.choices), *map(str, kind.choices), "", "x", "\ud800"))
    if isinstance(kind, (click.types.IntParamType, click.IntRange)):
        return rng.choice(NUMBERS if name in LONG else NUMBERS + HUGE)
    if isinstance(kind, click.types.FloatParamType):
        return rng.choice(FLOATS)
    if "mesh" in name or name == "spares":
        return rng.choice(MESHES)
    if name in ("json_path", "logits", "trace"):
        return rng.choice(PATHS)
    if name == "prompts":
        return rng.choice(("{folder}/config.json", "{folder}/model.safetensors", "{folder}", "", "x", "/dev/zero"))
    if name == "defects":
        return rng.choice((*FLOATS, "{folder}/defects.json", "{folder}", "/dev/zero"))
    if name == "model":
        return rng.choice(("{folder}", "{folder}/nothing", "", "~nobody/x", "x" * 300, "/", "nothing"))
    if name in ("groups", "prompt_ids", "sides", "regions"):
        return rng.choice(LISTS)
    return rng.choice((*TEXTS, *TEXT_VALUES, *NUMBERS))


def given(rng: Random, choose_from: tuple[click.Option, ...], most: int) -> list[str]:
    """Some options as arguments."""
    arguments = []
    for option in rng.sample(choose_from, min(len(choose_from), rng.randrange(most + 1))):
        if option.is_flag:
            arguments.append(option.opts[0])
        elif rng.random() < 0.5:
            arguments.append(f"{option.opts[0]}={value_of(rng, option)}")
        else:
            arguments += [option.opts[0], value_of(rng, option)]
    return arguments


def make_command(rng: Random) -> FuzzCase:
    files = valid_model()
    files["defects.json"] = mutated_json(rng, {"cores": [[0, 0]], "links": [[1, 1, "east"]]})
    kind = rng.random()
    if kind < 0.7:
        program = rng.choice(list(SMALL))
        if "{folder}" in SMALL[program] and rng.random() < 0.6:
            files |= valid_mixture(rng) if rng.random() < 0.5 else rng.choice(MALFORMED)(rng).files
        arguments = ["run", *program.split(), *SMALL[program].split(), *given(rng, options(program), 4)]
    elif kind < 0.8:
        term = rng.choice(TERMS)
        text = rng.choice(("gemm:m={%s}", "shift:tile={%s}", "gemv:axis=%s", "%s", "cannon:%s=1")) % term
        arguments = ["plmr", text, "--sizes", rng.choice(("2,3,4", "2,3", "x", "2,3," + "9" * 5000)), "--tile", "2"]
        arguments += rng.choice(([], ["--expect", rng.choice(BOUNDS)], ["--steps", rng.choice(TERMS)]))
    elif kind < 0.9:
        arguments = rng.choice((
            ["list"], ["devices"], ["tune", "llama-tiny", "--prompt-tokens", "0", "--new-tokens", "1"],
            ["launch", "--dry-run", "-n", rng.choice(("0", "-1", "x", "9" * 30, "65537")), "--", "run", "gemm"],
            [rng.choice(("compress", "quantize")), rng.choice(WORDS), "--out", rng.choice(PATHS)],
            ["quantize", "llama-tiny", "--sizes", "--ranks", rng.choice(WORDS), "--budget", rng.choice(WORDS)],
            ["reproduce", rng.choice(("x", "", "--help"))],
            ["bench", rng.choice(("gemm", "x")), "--m", rng.choice(("0", "x", "9" * 30))],
        ))  # fmt: skip
    else:
        arguments = [rng.choice(("run", "list", "devices", "nothing", "")), *rng.choices(WORDS, k=2)]
    if rng.random() < 0.1:
        arguments.insert(rng.randrange(1, len(arguments) + 1), rng.choice(WORDS))
    return FuzzCase(files, arguments=tuple(arguments))


def run_a_command(folder: Path, arguments: tuple[str | None, ...]) -> None:
    """`meshrt ARGUMENTS` in this process: it has to end well, or with one line about input (2) or a limit (3)."""
    from meshrt import cli

    argv = ["meshrt", *((argument or "").replace("{folder}", str(folder)) for argument in arguments)]
    out, err = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: object = None
    with redirect_stdout(out), redirect_stderr(err), mock.patch.object(sys, "argv", argv):
        try:
            cli.main()
        except SystemExit as error:
            code = error.code
    message = err.buffer.getvalue().decode()
    lines = message.splitlines()
    assert code in (0, 2, 3), f"exit code {code}:\n{message}"
    if code:
        assert lines and lines[0].startswith("meshrt: error"), f"exit code {code} says:\n{message}"
        assert len(lines) == 1 or argv[1] == "plmr", f"more than one line:\n{message}"
    else:
        beside = "--text" in argv  # the table is on standard error then
        said = [line for line in lines if not beside or line.startswith("meshrt:")]
        assert not said, f"a run that went well says:\n{message}"
