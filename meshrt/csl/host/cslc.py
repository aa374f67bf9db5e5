"""`cslc` of a child of `meshrt csl run`: builds a program, so that errors show now, and writes out.json."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from meshrt.csl.errors import CslError
from meshrt.csl.language.program import build
from meshrt.errors import MeshrtError

TAKEN = ("--arch", "-o", "--output", "--params", "--colors")
# What says how the compiler or memcpy goes about it, and nothing of the program.
OTHERS = (
    "--fabric-dims", "--fabric-offsets", "--channels", "--width-west-buf", "--width-east-buf",
    "--max-inlined-iterations", "--max-parallelism", "--import-path", "--verbose",
    "--memcpy", "--no-memcpy", "--link-section-start-address-bytes",
)  # fmt: skip


def main(argv: list[str]) -> int:
    try:
        return compile_(argv)
    except MeshrtError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def compile_(argv: list[str]) -> int:
    """Build. CslError, MemoryLimit."""
    arch, out, source = "wse2", "out", None
    parameters: dict[str, int] = {}
    colors: dict[str, int] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            source = Path(word)
            continue
        name, _, value = word.partition("=")
        if name not in (*TAKEN, *OTHERS):
            raise CslError(f"cslc {name} is not here: there are {', '.join((*TAKEN, *OTHERS))}")
        if name in ("--memcpy", "--no-memcpy", "--verbose"):
            continue
        if not value:
            if not words:
                raise CslError(f"cslc {name} has no value")
            value = words.pop(0)
        if name == "--arch":
            arch = value
        elif name in ("-o", "--output"):
            out = value
        elif name == "--params":
            parameters |= parse_parameters(value)
        elif name == "--colors":
            colors |= parse_parameters(value)
    if source is None:
        raise CslError("cslc is given no file")
    program = build(source.resolve(), parameters | colors, arch)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        "params": {name: str(value) for name, value in parameters.items()},
        "colors": {name: str(value) for name, value in colors.items()},
        "meshrt": {
            "path": str(source.resolve()),
            "parameters": parameters | colors,
            "arch": arch,
            "size": program.size,
        },
    }
    (folder / "out.json").write_text(json.dumps(written))
    if os.environ.get("MESHRT_CSL_BUILT"):
        Path(os.environ["MESHRT_CSL_BUILT"]).touch()
    return 0


def parse_parameters(text: str) -> dict[str, int]:
    """'M:4,N:6'. CslError."""
    parameters: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, value = (word.strip() for word in part.partition(":"))
        if name in parameters:
            raise CslError(f"--params {text}: {name} is there twice, as {parameters[name]} and as {value}")
        try:
            parameters[name] = int(value, 0)
        except ValueError:
            raise CslError(f"--params {part}: NAME:NUMBER is asked for") from None
    return parameters


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
