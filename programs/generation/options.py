"""What a generation is asked for: options that mean the same on every machine, and the checks of them."""

from math import inf
from typing import Annotated, Literal

from meshrt.errors import UsageError
from meshrt.options import FILE, HOST, WRITTEN, Above, AtLeast, AtMost, Below, Listed
from meshrt.ranks.files import check_target
from meshrt.records import dataclass

PROMPT = "Once upon a time"
MOST_TOKENS = 10_000_000  # of a prompt that says nothing: their ids alone take a second to count
EVERY = 16  # tokens from one state that is kept to the next

PromptText = Annotated[
    str | None, f"text to go on from; - is standard input, @FILE a file, @@ a text's own @  [default: {PROMPT!r}]"
]
PromptIds = Annotated[str | None, "token ids instead of text: 1,2,3", Listed()]
PromptTokens = Annotated[
    int | None, "a prompt of so many tokens, whatever they say", AtLeast(1), AtMost(MOST_TOKENS)
]  # fmt: skip
MaxNewTokens = Annotated[int, "stop after so many tokens, if the model does not before", AtLeast(1)]
Dtype = Annotated[
    Literal["float32", "float16", "bfloat16"] | None,
    "storage of weights and KV; sums are float32  [default: the model's]",
]
Layers = Annotated[int | None, "only the first so many layers of the model", AtLeast(1)]
LayersRun = Annotated[int | None, "run so many layers, count the last for the others; --payload none", AtLeast(1)]
IgnoreEos = Annotated[bool, "do not stop at the end-of-text token"]
LogitsPath = Annotated[str | None, "write all logits to this .npy: float32 [tokens, vocabulary]", WRITTEN]


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """What is to be generated, of which model, and what is kept of it: options that `llama` has on every machine."""

    model: Annotated[
        str, "a packaged model's name, a Hugging Face folder, also a compressed one, or a name in its local cache", FILE
    ] = "llama-tiny"
    prompt: PromptText = None
    prompts: Annotated[
        str | None,
        'a file with a prompt a line, a text or {"prompt": TEXT}; - is standard input; each is answered',
        FILE,
    ] = None
    prompt_ids: PromptIds = None
    prompt_tokens: PromptTokens = None
    context: Annotated[
        int, "no prompt: the cache holds so many tokens to begin with; --payload none", AtLeast(0)
    ] = 0  # fmt: skip
    max_new_tokens: MaxNewTokens = 32
    layers: Layers = None
    temperature: Annotated[float, "0 is greedy", AtLeast(0), Below(inf)] = 0.0
    top_k: Annotated[int, "sample among the k likeliest; 0: all", AtLeast(0)] = 0
    top_p: Annotated[float, "sample among the likeliest that make up this share", Above(0), AtMost(1)] = 1.0
    seed: Annotated[int, "of the sampling", AtLeast(0)] = 0
    ignore_eos: IgnoreEos = False
    logits: LogitsPath = None
    checkpoint: Annotated[str | None, "folder to keep the state of the generation in", HOST, WRITTEN] = None
    every: Annotated[
        int | None, f"new tokens from one state that is kept to the next  [default: {EVERY}]", AtLeast(1), HOST
    ] = None  # fmt: skip
    resume: Annotated[
        bool, "go on from the state in that folder, if there is one, on any number of ranks", HOST
    ] = False  # fmt: skip


def check(options: GenerationOptions, payload: bool, layers: int) -> None:
    """UsageError for more layers than the model has, and for what is of no use with numbers, or without."""
    check_kept(options)
    if options.layers is not None and options.layers > layers:
        raise UsageError(f"--layers is {options.layers}; the model has {layers}")
    if payload and options.context:
        raise UsageError(f"--context {options.context} leaves numbers out: add --payload none")
    if options.temperature and not payload:
        raise UsageError("--temperature is for tokens that are drawn by their logits, of which --payload none has none")
    if options.logits is not None:
        check_target("--logits", options.logits)
        if not payload:
            raise UsageError("--logits are numbers, of which --payload none has none: leave one of the two away")


def check_kept(options: GenerationOptions) -> None:
    """UsageError for what is about a state that is not kept."""
    if options.checkpoint is None and options.resume:
        raise UsageError("--resume goes on from the state in a folder: name it with --checkpoint")
    if options.checkpoint is None and options.every is not None:
        raise UsageError(f"--every is {options.every} and no state is kept: name a folder for it with --checkpoint")


def check_trace(options: GenerationOptions, option: str) -> None:
    """UsageError for a trace, or for maps, as that option asks for, of a generation that keeps states."""
    if options.checkpoint is not None:
        raise UsageError(f"{option} has all that ran, and --checkpoint keeps nothing of it: leave one of the two away")


def check_positions(options: GenerationOptions, payload: bool, length: int, most: int) -> None:
    """UsageError for a prompt and an answer that are longer than a model with numbers can tell apart."""
    if payload and length + options.max_new_tokens > most:
        raise UsageError(
            f"{length} prompt tokens and {options.max_new_tokens} new ones are more than the {most} positions of the"
            " model: shorten the prompt, or lower --max-new-tokens"
        )
