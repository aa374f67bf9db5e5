"""Writes tests/golden/*.npz: what Hugging Face transformers computes for the random models and the trained ones.

Needs torch and transformers. The tests need neither: they compare with the files. From the top of the checkout:

    PYTHONPATH=. python tests/make_golden.py [NAME...]
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from random_models import CASES, case_ids, case_seed, random_checkpoint
from safetensors.numpy import load_file, save_file

from meshrt.models.catalogue import find_model
from meshrt.models.stories import stories
from meshrt.models.tokenizer import encode, load_tokenizer

GOLDEN = Path(__file__).parent / "golden"
TINY = ("llama-tiny", "mixtral-tiny", "deepseek-tiny")
PROMPT_TOKENS, NEW_TOKENS = 16, 32


def hugging_face_logits(folder: Path, ids: list[int]) -> NDArray[np.float32]:
    """Logits [T, vocab] of transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits: NDArray[np.float32] = model(torch.tensor([ids])).logits[0].numpy()
    return logits


def save(name: str, **arrays: NDArray[np.generic] | list[int]) -> None:
    GOLDEN.mkdir(exist_ok=True)
    temporary = GOLDEN / f".{name}.npz"
    np.savez_compressed(temporary, allow_pickle=False, **{key: np.asarray(array) for key, array in arrays.items()})
    os.replace(temporary, GOLDEN / f"{name}.npz")
    print(name, {key: np.shape(array) for key, array in arrays.items()})


def make_random(name: str) -> None:
    """The case's prompt and the 8 ids that follow greedily (of a random model, which knows no end of text)."""
    with tempfile.TemporaryDirectory() as place:
        folder = dense_twin(random_checkpoint(CASES[name], Path(place), case_seed(name)))
        ids = case_ids(name)
        for _ in range(8):
            ids.append(int(hugging_face_logits(folder, ids)[-1].argmax()))
        logits = hugging_face_logits(folder, ids)
        check_training_model(Path(place), ids, logits)
        save(name, ids=ids, logits=logits, prompt=[len(ids) - 8])


def check_training_model(folder: Path, ids: list[int], expected: NDArray[np.float32]) -> None:
    """The model of meshrt.models.training.torchmodel gives the same logits; LoRA changes nothing before training, and
    what is trained is the same merged and not merged."""
    import torch

    from meshrt.models.training.lora import add_lora, merge, read_model

    model = read_model(folder)
    tokens = torch.tensor([ids])
    torch.manual_seed(0)
    with torch.no_grad():
        plain = model(tokens)[0].numpy()
        factors = add_lora(model, 3)
        for number, parameter in enumerate(p for p in model.parameters() if p.requires_grad):
            if number == 0:
                np.testing.assert_array_equal(model(tokens)[0].numpy(), plain)
            parameter.copy_(0.05 * torch.randn(parameter.shape))
        trained = model(tokens)[0].numpy()
        merge(factors)
        merged = model(tokens)[0].numpy()
    np.testing.assert_allclose(plain, expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(merged, trained, rtol=0, atol=1e-4)
    assert not factors or np.abs(trained - plain).max() > 0.01


def dense_twin(folder: Path) -> Path:
    """Of a model with matrices in two factors, one that has their products instead: transformers knows no factors."""
    config = json.loads((folder / "config.json").read_text())
    ranks = config.pop("low_rank", {"ranks": {}})["ranks"]
    weights = load_file(folder / "model.safetensors")
    for name in ranks:
        u, v = (weights.pop(f"{name.removesuffix('_proj')}_{factor}_proj.weight") for factor in "uv")
        weights[name + ".weight"] = (v.astype(np.float64) @ u.astype(np.float64)).astype(np.float32)
    twin = folder / "dense"
    twin.mkdir()
    (twin / "config.json").write_text(json.dumps(config))
    save_file(weights, twin / "model.safetensors", metadata={"format": "pt"})
    return twin


def make_tiny(name: str) -> None:
    """A prompt of 16 ids and the 32 that follow greedily, of a packaged model. The prompt is the start of the first
    story for which no choice is a near tie: a different order of summation moves a logit by some 1e-5, and must not
    change the text."""
    folder = find_model(name)
    tokenizer, logits_of = load_tokenizer(folder), tiny_logits(name, folder)
    for story in stories(31, 200):
        ids = encode(tokenizer, story)[:PROMPT_TOKENS]
        while len(ids) < PROMPT_TOKENS + NEW_TOKENS and ids[-1] != 0:
            ids.append(int(logits_of(ids)[-1].argmax()))
        logits = logits_of(ids)
        best, second = np.sort(logits[PROMPT_TOKENS - 1 :], axis=-1)[:, :-3:-1].T
        if len(ids) == PROMPT_TOKENS + NEW_TOKENS and ids[-1] != 0 and np.min(best - second) > 0.03:
            check_trained_model(folder, ids, logits)
            return save(name, ids=ids, logits=logits, prompt=[PROMPT_TOKENS])
    raise SystemExit("every story has a near tie")


def tiny_logits(name: str, folder: Path) -> Callable[[list[int]], NDArray[np.float32]]:
    """Of transformers, or of the block that stands in for what it has not."""
    import torch
    from moe_models import deepseek
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    if name == "deepseek-tiny":
        model = deepseek(json.loads((folder / "config.json").read_text()), folder, torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")

    def logits(ids: list[int]) -> NDArray[np.float32]:
        with torch.no_grad():
            of_model: NDArray[np.float32] = model(torch.tensor([ids])).logits[0].numpy()
        return of_model

    return logits


def check_trained_model(folder: Path, ids: list[int], expected: NDArray[np.float32]) -> None:
    """The model of meshrt.models.training.torchmodel, which was trained, gives the same logits."""
    import torch

    from meshrt.models.config import read_config
    from meshrt.models.training.torchmodel import Llama, tensor_name

    model, weights = Llama(read_config(folder)), load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weights.pop(tensor_name(name)).astype(np.float32)))
        np.testing.assert_allclose(model(torch.tensor([ids]))[0].numpy(), expected, rtol=0, atol=1e-4)
    assert not weights


if __name__ == "__main__":
    for wanted in sys.argv[1:] or [*CASES, *TINY]:
        make_tiny(wanted) if wanted in TINY else make_random(wanted)
