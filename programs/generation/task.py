"""What is to be generated, on any machine: by which model, from which prompt, and how tokens are chosen."""

from collections.abc import Mapping
from pathlib import Path

from meshrt.errors import UsageError
from meshrt.machine import Machine
from meshrt.models.catalogue import find_model
from meshrt.models.config import Config, read_config
from meshrt.programs.generation.choice import Choice, make_choice
from meshrt.programs.generation.options import GenerationOptions, check, check_positions, check_trace
from meshrt.programs.generation.prompt import Prompt, read_prompt
from meshrt.programs.generation.several import check_several, read_prompts
from meshrt.records import dataclass
from meshrt.reports.parts import Runs


@dataclass(frozen=True, eq=False)
class TextTask:
    """`config` is the model's as its folder has it; `file` an option that keeps what one run did, if one is given."""

    machine: Machine
    options: GenerationOptions
    folder: Path
    config: Config
    choice: Choice
    file: str | None

    def prompt(self) -> Prompt:
        """The one prompt. UsageError, ModelError."""
        prompt = read_prompt(self.machine.control, self.folder, self.config.vocab_size, self.options)
        check_positions(self.options, self.machine.payload, len(prompt), self.config.max_positions)
        return prompt

    def one_by_one(self) -> Runs:
        """A run for each prompt of a file, on a machine that is as new: what is measured of it is what it takes alone.

        UsageError, ModelError.
        """
        check_several(self.options)
        if self.file is not None:
            raise UsageError(
                f"{self.file} is of one run, and --prompts has one for each prompt: leave one of the two away"
            )
        prompts = read_prompts(self.machine.control, self.folder, self.config.vocab_size, self.options)
        for prompt in prompts:
            check_positions(self.options, self.machine.payload, len(prompt), self.config.max_positions)
        return Runs([{"prompts": None, "prompt_ids": ",".join(map(str, prompt.ids))} for prompt in prompts])


def task_of(machine: Machine, options: GenerationOptions, files: Mapping[str, object]) -> TextTask:
    """What the options ask for. `files` are those that keep what one run did, by option; None and ""
    are of options that are not given.

    UsageError, ModelError.
    """
    folder = find_model(options.model)
    config = read_config(folder, quantized=True)
    choice = make_choice(options, machine.payload, config.eos_token_ids)
    check(options, machine.payload, config.layers)
    given = [option for option, file in files.items() if file]
    for option in given:
        check_trace(options, option)
    return TextTask(machine, options, folder, config, choice, given[0] if given else None)
