"""The packaged model: small, complete, and as good as its README says."""

import json
import math
import re

import numpy as np
import pytest

from meshrt.models.catalogue import find_model
from meshrt.models.checkpoint import check_shapes, open_checkpoint
from meshrt.models.config import read_config
from meshrt.models.reference import forward, generate, load_weights
from meshrt.models.stories import stories
from meshrt.models.tokenizer import decode, encode, load_tokenizer

FOLDER = find_model("llama-tiny")
MAX_PERPLEXITY = 1.5
HELD_OUT_SEED = 1_000_003


def test_llama_tiny_is_small() -> None:
    checkpoint = open_checkpoint(FOLDER)
    parameters = sum(math.prod(checkpoint.shape(name)) for name in checkpoint.tensors)
    assert 700_000 < parameters < 1_000_000
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 4_000_000


def test_llama_tiny_folder_is_whole() -> None:
    config = read_config(FOLDER)
    check_shapes(open_checkpoint(FOLDER), config)
    assert (config.hidden_size, config.layers, config.heads, config.kv_heads, config.head_dim) == (128, 4, 8, 4, 16)
    assert (config.intermediate_size, config.vocab_size, config.tie_word_embeddings) == (384, 512, True)
    assert (config.bos_token_id, config.eos_token_ids, config.dtype) == (0, (0,), "float16")
    assert load_tokenizer(FOLDER).get_vocab_size() == config.vocab_size
    for name in ("generation_config.json", "tokenizer_config.json"):
        assert json.loads((FOLDER / name).read_text())


def test_llama_tiny_predicts_held_out_stories() -> None:
    """Perplexity per token of stories that it was not trained on, by the NumPy reference; close to the README's."""
    config, weights, tokenizer = read_config(FOLDER), load_weights(FOLDER, np.float32), load_tokenizer(FOLDER)
    nats, tokens = 0.0, 0
    for story in stories(HELD_OUT_SEED, 30):
        ids = encode(tokenizer, story)
        logits = forward(config, weights, ids, np.float32).astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        following = [*ids[1:], config.eos_token_ids[0]]
        log_p = logits[np.arange(len(ids)), following] - np.log(np.exp(logits).sum(axis=-1))
        nats, tokens = nats - log_p.sum(), tokens + len(ids)
    perplexity = math.exp(nats / tokens)
    stated = re.search(r"perplexity per token \| ([\d.]+)", (FOLDER / "README.md").read_text())
    assert stated and perplexity < MAX_PERPLEXITY
    assert perplexity == pytest.approx(float(stated[1]), rel=0.05)


def test_llama_tiny_ends_its_story() -> None:
    config, weights, tokenizer = read_config(FOLDER), load_weights(FOLDER, np.float32), load_tokenizer(FOLDER)
    prompt = encode(tokenizer, "Once upon a time")
    new = generate(config, weights, prompt, 400, np.float32)
    text = decode(tokenizer, prompt + new)
    assert new[-1] == config.eos_token_ids[0]
    assert 40 < len(text.split()) < 200
    assert text.startswith("Once upon a time") and text[-1] in '.!?"'
