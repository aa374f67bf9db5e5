"""The packaged models with weights: small, complete, and as good as their READMEs say."""

import json
import math
import re

import numpy as np
import pytest

from meshrt.models.calibrate import expert_tokens
from meshrt.models.catalogue import find_model, has_experts, has_weights, packaged
from meshrt.models.config import Config, read_config
from meshrt.models.folders.checkpoint import check_shapes, open_checkpoint
from meshrt.models.reference import forward, generate, load_weights
from meshrt.models.stories import HELD_OUT_SEED, stories
from meshrt.models.texts import story_sequences
from meshrt.models.tokenizer import decode, encode, load_tokenizer
from meshrt.models.training.tiny import CONFIGS, router_loss

PARAMETERS = {"llama-tiny": 853_120, "mixtral-tiny": 1_840_256, "deepseek-tiny": 1_744_000}
MIXTURES = [name for name in CONFIGS if name != "llama-tiny"]
MAX_PERPLEXITY = 1.5

each = pytest.mark.parametrize("name", CONFIGS)


def test_these_are_the_packaged_models_with_weights() -> None:
    assert {name for name in packaged() if has_weights(name)} == {*CONFIGS} == {*PARAMETERS}
    assert [name for name in CONFIGS if has_experts(name)] == MIXTURES


@each
def test_it_is_small(name: str) -> None:
    checkpoint = open_checkpoint(find_model(name))
    assert sum(math.prod(checkpoint.shape(tensor)) for tensor in checkpoint.tensors) == PARAMETERS[name]
    assert {checkpoint.find(tensor).dtype for tensor in checkpoint.tensors} == {"F16"}
    assert sum(path.stat().st_size for path in find_model(name).iterdir()) < 4_000_000


@each
def test_its_folder_is_whole(name: str) -> None:
    folder = find_model(name)
    config = read_config(folder)
    check_shapes(open_checkpoint(folder), config)
    assert json.loads((folder / "config.json").read_text()) == dict(CONFIGS[name])
    assert (config.hidden_size, config.layers, config.heads, config.kv_heads, config.head_dim) == (128, 4, 8, 4, 16)
    assert (config.vocab_size, config.tie_word_embeddings) == (512, True)
    assert (config.bos_token_id, config.eos_token_ids, config.dtype) == (0, (0,), "float16")
    assert load_tokenizer(folder).get_vocab_size() == config.vocab_size
    for file in ("tokenizer.json", "generation_config.json", "tokenizer_config.json"):
        assert (folder / file).read_bytes() == (find_model("llama-tiny") / file).read_bytes()


def test_the_mixtures_are_those_that_are_described() -> None:
    few, many = (Config.from_dict(CONFIGS[name]).moe for name in ("mixtral-tiny", "deepseek-tiny"))
    assert few and (few.experts, few.top, few.inner, few.renormalise, few.shared, few.dense) == (8, 2, 128, True, 0, ())
    assert many and (many.experts, many.top, many.inner) == (16, 4, 64)
    assert (many.renormalise, many.shared, many.dense) == (False, 128, (0,))
    assert Config.from_dict(CONFIGS["deepseek-tiny"]).intermediate_size == 384
    assert [router_loss(CONFIGS[name]) for name in CONFIGS] == [0, 0.001, 0.001]


@pytest.mark.sample(2)
@each
def test_it_predicts_held_out_stories(name: str) -> None:
    """Perplexity per token of stories that it was not trained on, by the NumPy reference; close to the README's."""
    folder = find_model(name)
    config, weights, tokenizer = read_config(folder), load_weights(folder, np.float32), load_tokenizer(folder)
    nats, tokens = 0.0, 0
    for story in stories(HELD_OUT_SEED, 30):
        ids = encode(tokenizer, story)
        logits = forward(config, weights, ids, np.float32).astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        following = [*ids[1:], config.eos_token_ids[0]]
        log_p = logits[np.arange(len(ids)), following] - np.log(np.exp(logits).sum(axis=-1))
        nats, tokens = nats - log_p.sum(), tokens + len(ids)
    perplexity = math.exp(nats / tokens)
    stated = re.search(r"perplexity per token \| ([\d.]+)", (folder / "README.md").read_text())
    assert stated and perplexity < MAX_PERPLEXITY
    assert perplexity == pytest.approx(float(stated[1]), rel=0.05)


@pytest.mark.sample(1)
@each
def test_it_ends_its_story(name: str) -> None:
    folder = find_model(name)
    config, weights, tokenizer = read_config(folder), load_weights(folder, np.float32), load_tokenizer(folder)
    prompt = encode(tokenizer, "Once upon a time")
    new = generate(config, weights, prompt, 400, np.float32)
    text = decode(tokenizer, prompt + new)
    assert new[-1] == config.eos_token_ids[0]
    assert 40 < len(text.split()) < 200
    assert text.startswith("Once upon a time") and text[-1] in '.!?"'
    assert text in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", MIXTURES)
def test_its_experts_are_unevenly_chosen_and_none_is_idle(name: str) -> None:
    """Else ranks by frequency would have nothing to go by."""
    folder = find_model(name)
    config = read_config(folder)
    texts = story_sequences(config, load_tokenizer(folder), 3, 30)
    layers: dict[str, list[int]] = {}
    for expert, count in expert_tokens(config, load_weights(folder, np.float32), texts).items():
        layers.setdefault(expert.split(".")[2], []).append(count)
    assert len(layers) == (4 if name == "mixtral-tiny" else 3) and all(min(counts) > 0 for counts in layers.values())
    assert all(max(counts) > 1.4 * min(counts) for counts in layers.values())
