"""What a generation is asked for: options that mean the same on every machine, and the checks of them."""

from collections.abc import Mapping
from dataclasses import fields
from math import inf
from typing import Annotated, Any, Literal, TypeVar

from meshrt.errors import UsageError
from meshrt.options import HOST, Above, AtLeast, AtMost, Below
from meshrt.ranks.files import check_target
from meshrt.records import dataclass

PROMPT = "Once upon a time"
MOST_TOKENS = 10_000_000  # of a prompt that says nothing: their ids alone take a second to count
EVERY = 16  # tokens from one state that is kept to the next

Model = Annotated[
    str, "a packaged model's name, a Hugging Face folder, also a compressed one, or a name in its local cache"
]
PromptText = Annotated[
    str | None, f"text to go on from; - is standard input, @FILE a file, @@ a text's own @  [default: {PROMPT!r}]"
]
Prompts = Annotated[
    str | None, 'a file with a prompt a line, a text or {"prompt": TEXT}; - is standard input; each is answered'
]
PromptIds = Annotated[str | None, "token ids instead of text: 1,2,3"]
PromptTokens = Annotated[
    int | None, "a prompt of so many tokens, whatever they say", AtLeast(1), AtMost(MOST_TOKENS)
]  # fmt: skip
Context = Annotated[int, "no prompt: the cache holds so many tokens to begin with; --payload none", AtLeast(0)]
MaxNewTokens = Annotated[int, "stop after so many tokens, if the model does not before", AtLeast(1)]
Dtype = Annotated[
    Literal["float32", "float16", "bfloat16"] | None,
    "storage of weights and KV; sums are float32  [default: the model's]",
]
Layers = Annotated[int | None, "only the first so many layers of the model", AtLeast(1)]
LayersRun = Annotated[int | None, "run so many layers, count the last for the others; --payload none", AtLeast(1)]
Temperature = Annotated[float, "0 is greedy", AtLeast(0), Below(inf)]
TopK = Annotated[int, "sample among the k likeliest; 0: all", AtLeast(0)]
TopP = Annotated[float, "sample among the likeliest that make up this share", Above(0), AtMost(1)]
Seed = Annotated[int, "of the sampling", AtLeast(0)]
IgnoreEos = Annotated[bool, "do not stop at the end-of-text token"]
LogitsPath = Annotated[str | None, "write all logits to this .npy: float32 [tokens, vocabulary]"]
Checkpoint = Annotated[str | None, "folder to keep the state of the generation in", HOST]
Every = Annotated[
    int | None, f"new tokens from one state that is kept to the next  [default: {EVERY}]", AtLeast(1), HOST
]  # fmt: skip
Resume = Annotated[bool, "go on from the state in that folder, if there is one, on any number of ranks", HOST]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The values of these options, by their names."""

    model: str
    prompt: str | None = None
    prompt_ids: str | None = None
    prompt_tokens: int | None = None
    context: int = 0
    max_new_tokens: int = 32
    layers: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False
    logits: str | None = None
    checkpoint: str | None = None
    every: int | None = None
    resume: bool = False


Kind = TypeVar("Kind")


def taken(kind: type[Kind], arguments: Mapping[str, Any]) -> Kind:
    """A dataclass with those of a program's arguments that it has fields for."""
    return kind(**{field.name: arguments[field.name] for field in fields(kind) if field.name in arguments})  # type: ignore[arg-type]  # by name


def check(options: Asked, payload: bool, layers: int) -> None:
    """UsageError for more layers than the model has, and for what is of no use with numbers, or without them."""
    if options.layers is not None and options.layers > layers:
        raise UsageError(f"--layers is {options.layers}; the model has {layers}")
    if payload and options.context:
        raise UsageError(f"--context {options.context} leaves numbers out: add --payload none")
    if options.temperature and not payload:
        raise UsageError("--temperature is for tokens that are drawn by their logits, of which --payload none has none")
    if options.logits:
        check_target("--logits", options.logits)
        if not payload:
            raise UsageError("--logits are numbers, of which --payload none has none: leave one of the two away")


def check_trace(options: Asked, path: str | None, option: str = "--trace") -> None:
    """UsageError for a trace, or for maps, of a generation that keeps states."""
    if options.checkpoint is not None and path:
        raise UsageError(f"{option} has all that ran, and --checkpoint keeps nothing of it: leave one of the two away")


def check_positions(options: Asked, payload: bool, length: int, most: int) -> None:
    """UsageError for a prompt and an answer that are longer than a model with numbers can tell apart."""
    if payload and length + options.max_new_tokens > most:
        raise UsageError(
            f"{length} prompt tokens and {options.max_new_tokens} new ones are more than the {most} positions of the"
            " model: shorten the prompt, or lower --max-new-tokens"
        )
