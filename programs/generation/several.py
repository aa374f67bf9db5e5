"""Several prompts of one run, the lines of a file or of standard input: together on GPUs, else one after the other."""

import json
import re
from pathlib import Path
from typing import Any

from meshrt.errors import UsageError
from meshrt.programs.generation.given import INPUT, read_shared
from meshrt.programs.generation.options import GenerationOptions, check_kept
from meshrt.programs.generation.prompt import Prompt, encoded
from meshrt.ranks.control import Control

# What a line may ask for elsewhere; here one run has one limit and one choice for all of its prompts.
ASKED = {"max_tokens", "max_new_tokens", "output_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop"}
LINE_END = re.compile("\r\n|\n|\r")  # of files: JSON has other breaks, such as U+2028, within its texts


def check_several(options: GenerationOptions) -> None:
    """UsageError for what is for one prompt."""
    if (
        any(option is not None for option in (options.prompt, options.prompt_ids, options.prompt_tokens))
        or options.context
    ):
        raise UsageError(
            "--prompts has prompts already: leave --prompt, --prompt-ids, --prompt-tokens and --context away"
        )
    if options.logits:
        raise UsageError("--logits is for one prompt: leave --prompts away, or the logits")
    if options.temperature:
        raise UsageError("--prompts has the likeliest tokens: leave --temperature away, or give one --prompt")
    if options.checkpoint is not None:
        raise UsageError("--checkpoint keeps the state of one prompt: leave --prompts away, or the checkpoint")
    check_kept(options)


def read_prompts(control: Control, folder: Path, vocabulary: int, options: GenerationOptions) -> list[Prompt]:
    """The prompts of a file, one a line: its text, or where a line begins with {, its "prompt" as JSON has it (JSON
    lines, as `vllm bench serve` reads its custom data). UsageError, ModelError."""
    file = options.prompts
    assert file is not None
    way = "name a file with a prompt in each line, or give one by --prompt"
    text = read_shared(control, f"--prompts {file}", None if file == INPUT else file, f"; {way}")
    lines = [(at, line) for at, line in enumerate(LINE_END.split(text), 1) if line.strip()]
    if not lines:
        raise UsageError(f"--prompts {file} has no line with a prompt: {way}")
    return [encoded(control, folder, vocabulary, _prompt(file, at, line)) for at, line in lines]


def _prompt(file: str, number: int, line: str) -> str:
    if not line.lstrip().startswith("{"):
        return line
    try:
        entry: Any = json.loads(line)
        prompt = entry["prompt"]
        if not isinstance(prompt, str) or not prompt:
            raise ValueError
    except (ValueError, KeyError, RecursionError):
        raise UsageError(
            f'--prompts {file}, line {number}: {line[:60]!r} is no {{"prompt": "TEXT"}}; a line that does not begin'
            " with { is a prompt as it is"
        ) from None
    asks = sorted(ASKED & entry.keys())
    if asks:
        raise UsageError(
            f"--prompts {file}, line {number}: asks for {asks[0]!r}, and all prompts of a run are answered alike: take"
            " it out, and give --max-new-tokens for all"
        )
    return prompt
