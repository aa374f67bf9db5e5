"""Trains a packaged model: python -m meshrt.models.training.train --model mixtral-tiny --out models/mixtral-tiny

Needs torch, which meshrt itself never imports. The same seed, torch version and one thread give the same bytes.
Everything is generated: the text comes from meshrt.models.stories, the tokenizer is trained on it, and the folder that
comes out is an ordinary Hugging Face one.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.nn import functional

from meshrt.models.catalogue import find_model
from meshrt.models.config import Config
from meshrt.models.folders.checkpoint import open_checkpoint
from meshrt.models.stories import HELD_OUT_SEED, HELD_OUT_STORIES, stories
from meshrt.models.training.tiny import CONFIGS, KINDS, router_loss
from meshrt.models.training.torchmodel import Llama, tensor_name

EOS = "<|endoftext|>"


def train_tokenizer(texts: Iterator[str], config: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE: any text can be encoded. Encoding puts one <|endoftext|> in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config["vocab_size"],
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{EOS} $A", special_tokens=[(EOS, config["bos_token_id"])]
    )
    return tokenizer


def encode_stories(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def batches(encoded: list[list[int]], seed: int, plan: list[tuple[int, int]]) -> Iterator[Tensor]:
    """Windows [B, T + 1] of the packed stories, one for each (B, T) of the plan.

    Three quarters of the windows start with a story, as generation does; the others start anywhere.
    """
    rng = np.random.default_rng(seed)
    lengths = np.array([len(ids) for ids in encoded])
    stream = np.concatenate([np.array(ids, np.int64) for ids in encoded])
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    for rows, tokens in plan:
        last = len(stream) - tokens - 1
        offset = rng.integers(0, last, rows)
        whole = rows - rows // 4
        offset[:whole] = rng.choice(starts[starts < last], whole)
        yield torch.from_numpy(stream[offset[:, None] + np.arange(tokens + 1)])


def learning_rate(step: int, steps: int, peak: float, warm_up: int = 200) -> float:
    """Linear warm-up, then a cosine down to a hundredth of the peak."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up))))


@torch.no_grad()
def held_out(model: Llama, encoded: list[list[int]]) -> float:
    """Sum of -log p over all tokens after the first of each story and over the <|endoftext|> that ends it."""
    total = 0.0
    for ids in encoded:
        logits = model(torch.tensor([ids]))[0]
        total += functional.cross_entropy(
            logits, torch.tensor([*ids[1:], *model.config.eos_token_ids]), reduction="sum"
        ).item()
    return total


@torch.no_grad()
def sample_text(model: Llama, tokenizer: Tokenizer, prompt: str, temperature: float, seed: int) -> str:
    generator = torch.Generator().manual_seed(seed)
    ids = tokenizer.encode(prompt).ids
    while len(ids) < 400:
        logits = model(torch.tensor([ids]))[0, -1]
        if temperature == 0:
            token = int(logits.argmax())
        else:
            token = int(torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator))
        if token in model.config.eos_token_ids:
            break
        ids.append(token)
    return str(tokenizer.decode(ids))


def fit(
    model: Llama,
    groups: list[dict[str, Any]],
    encoded: list[list[int]],
    plan: list[tuple[int, int]],
    seed: int,
    peak: float,
    report: Callable[[int, float], None],
    router_loss: float = 0.0,
) -> None:
    """Trains the parameters in `groups` on a window of the plan a step. `report` hears of each step and its loss.

    `router_loss` is how much the unevenness of experts counts beside -log p, which alone is reported.
    """
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98), fused=True)
    for step, window in enumerate(batches(encoded, seed, plan)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, len(plan), peak)
        logits, uneven = model.with_unevenness(window[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        sum((router_loss / len(uneven) * value for value in uneven), start=loss).backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        report(step + 1, loss.item())


def train(args: argparse.Namespace, config: Mapping[str, Any], tokenizer: Tokenizer, test: list[list[int]]) -> Llama:
    """Runs the plan. Every tenth step has long windows, so that all positions get trained."""
    encoded = encode_stories(tokenizer, list(stories(args.seed, args.stories)))
    print(f"{args.stories} stories, {sum(map(len, encoded))} tokens", flush=True)
    model = Llama(Config.from_dict(config))
    if args.start:
        take_over(model, args.start)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    long = model.config.max_positions
    usual, longest = (args.batch, args.tokens), (max(1, args.batch * args.tokens // long), long)
    plan = [longest if step % 10 == 9 else usual for step in range(args.steps)]
    began = time.monotonic()

    def report(step: int, loss: float) -> None:
        if step % args.report == 0 or step == args.steps:
            nats = held_out(model, test[:50]) / sum(map(len, test[:50]))
            print(f"step {step}  train {loss:.4f}  held-out {nats:.4f}  {time.monotonic() - began:.0f} s", flush=True)

    fit(model, groups, encoded, plan, args.seed, args.lr, report, router_loss(config))
    return model


@torch.no_grad()
def take_over(model: Llama, name: str) -> None:
    """Starts from the tensors of a packaged model, all that have a name and shape of this one's."""
    checkpoint = open_checkpoint(find_model(name))
    parameters = {tensor_name(own): parameter for own, parameter in model.named_parameters()}
    same = [key for key in parameters if key in checkpoint.tensors and checkpoint.shape(key) == parameters[key].shape]
    for key in same:
        parameters[key].copy_(torch.from_numpy(checkpoint.read(key).astype(np.float32)))
    print(f"{len(same)} of {len(parameters)} tensors start as those of {name}", flush=True)


def write_folder(
    out: Path, args: argparse.Namespace, config: Mapping[str, Any], model: Llama, tokenizer: Tokenizer,
    texts: list[str], test: list[list[int]],
) -> None:  # fmt: skip
    """Writes the Hugging Face folder. The README's figures are those of the float16 weights, computed in float32."""
    half = {name: weight.detach().half().contiguous() for name, weight in model.state_dict().items()}
    model.load_state_dict({name: weight.float() for name, weight in half.items()})
    nats, tokens = held_out(model, test), sum(map(len, test))
    figures = {
        "perplexity per token": math.exp(nats / tokens),
        "perplexity per word": math.exp(nats / sum(len(text.split()) for text in texts)),
        "bits per byte": nats / math.log(2) / sum(len(text.encode()) for text in texts),
    }
    parameters = sum(weight.numel() for weight in half.values())
    greedy = sample_text(model, tokenizer, "Once upon a time", 0, 0)
    sampled = [sample_text(model, tokenizer, "Once upon a time", 0.8, seed) for seed in (1, 2)]
    arguments = f"--model {args.model} --out models/{args.model} --steps {args.steps} --batch {args.batch} "
    arguments += f"--tokens {args.tokens} --stories {args.stories} --lr {args.lr} --seed {args.seed}"
    arguments += f" --start {args.start}" if args.start else ""
    description = f"{KINDS[args.model]} of {parameters:,} parameters"
    readme = f"""# {args.model}

{description} that writes small stories. It is there so that meshrt runs a real model, with a
real tokenizer and real weights, on a machine without a network. It knows nothing but its stories.

The text it learned from is generated by `meshrt.models.stories`; no text of anyone else is in it. Made by

    python -m meshrt.models.training.train {arguments}

with torch {torch.__version__}, one thread. Weights are float16.

Held-out text: {len(texts)} stories of another seed, {tokens:,} tokens, each predicted from its start to its end.

| figure | value |
| --- | --- |
""" + "".join(f"| {name} | {value:.3f} |\n" for name, value in figures.items())
    readme += "\nGreedy, from `Once upon a time`:\n\n" + f"> {greedy}\n"
    readme += "\nSampled at temperature 0.8:\n\n" + "\n>\n".join(f"> {text}" for text in sampled) + "\n"

    out.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": weight for name, weight in half.items()}
    write(out / "model.safetensors", lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    write(out / "tokenizer.json", lambda path: tokenizer.save(str(path)))
    write_text(out / "config.json", json.dumps(config, indent=2) + "\n")
    write_text(out / "generation_config.json", json.dumps({"bos_token_id": 0, "eos_token_id": 0}, indent=2) + "\n")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": EOS,
        "eos_token": EOS,
        "model_max_length": model.config.max_positions,
        "clean_up_tokenization_spaces": False,
    }
    write_text(out / "tokenizer_config.json", json.dumps(settings, indent=2) + "\n")
    write_text(out / "README.md", readme)
    print("  ".join(f"{name} {value:.3f}" for name, value in figures.items()), greedy, *sampled, sep="\n", flush=True)


def write(path: Path, save: Any) -> None:
    """Saves beside the file and renames, so that a reader never meets half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    save(temporary)
    temporary.chmod(0o644)
    os.replace(temporary, path)


def write_text(path: Path, text: str) -> None:
    write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a packaged model.")
    parser.add_argument("--model", choices=CONFIGS, default="llama-tiny")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--batch", type=int, default=8, help="windows in a step")
    parser.add_argument("--tokens", type=int, default=256, help="length of a window")
    parser.add_argument("--stories", type=int, default=60000)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", metavar="MODEL", help="packaged model to start from, where names and shapes agree")
    parser.add_argument("--report", type=int, default=500, help="steps between two lines of progress")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)

    config = CONFIGS[args.model]
    tokenizer = train_tokenizer(stories(args.seed, 20000), config)
    texts = list(stories(HELD_OUT_SEED, HELD_OUT_STORIES))
    test = encode_stories(tokenizer, texts)
    print(f"held-out: {sum(map(len, test)) / len(test):.0f} tokens a story", flush=True)
    model = train(args, config, tokenizer, test)
    write_folder(args.out, args, config, model, tokenizer, texts, test)


if __name__ == "__main__":
    main()
