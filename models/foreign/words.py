"""The tokenizer in a GGUF file as tokenizer.json: byte-level BPE whose way of cutting text is known, or SentencePiece.

A file of SentencePiece has scores and no merges. What joins is what is a piece: two pieces join in the order of the
scores of what they make, which is what a BPE of these merges does.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from meshrt.models.errors import ModelError

CONTROL, USER, BYTE, UNKNOWN = 3, 4, 6, 2  # types of tokens
# How `tokenizer.ggml.pre` cuts a text before its pieces are looked up; None: as GPT-2.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CUTS = {"gpt-2": None, "llama-bpe": _WORDS % r"\p{N}{1,3}", "qwen2": _WORDS % r"\p{N}"}


def tokenizer_texts(values: Mapping[str, Any], path: Path) -> dict[str, str]:
    """tokenizer.json, if the file has a tokenizer that is known. ModelError for one that is damaged."""
    kind, tokens = values.get("tokenizer.ggml.model"), values.get("tokenizer.ggml.tokens")
    if not isinstance(kind, str) or tokens is None:
        return {}
    if not _texts(tokens) or len(set(tokens)) != len(tokens):
        raise ModelError(f"{path}: tokenizer.ggml.tokens is no list of words, each of them there once")
    types = values.get("tokenizer.ggml.token_type")
    kinds = [1] * len(tokens) if types is None else _numbers(types, "iu").tolist()
    if len(kinds) != len(tokens):
        raise ModelError(f"{path}: tokenizer.ggml.token_type has {len(kinds)} types for {len(tokens)} words")
    pre = values.get("tokenizer.ggml.pre")  # files without are older than it, and cut in ways that they do not say
    if kind == "gpt2" and isinstance(pre, str) and pre in CUTS:
        parts = _bytes(values, path, tokens, CUTS[pre], pre == "llama-bpe")
    elif kind == "llama":
        parts = _pieces(values, path, tokens, kinds)
    else:
        return {}
    added = [
        {"id": at, "content": tokens[at], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": token_type == CONTROL}
        for at, token_type in enumerate(kinds) if token_type in (CONTROL, USER)
    ]  # fmt: skip
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts}
    return {"tokenizer.json": json.dumps(whole | {"post_processor": _begin(values, path, tokens, kind)})}


def _bytes(
    values: Mapping[str, Any], path: Path, tokens: list[str], cut: str | None, whole_words: bool
) -> dict[str, Any]:
    merges = values.get("tokenizer.ggml.merges")
    if not _texts(merges) or not all(merge.count(" ") == 1 for merge in merges):
        raise ModelError(f"{path}: tokenizer.ggml.merges is no list of pairs of words")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": cut is None}
    split = {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False}
    before = level if cut is None else {"type": "Sequence", "pretokenizers": [split, level]}
    return {"normalizer": None, "pre_tokenizer": before, "decoder": level,
            "model": _bpe(tokens, merges) | {"ignore_merges": whole_words}}  # fmt: skip


def _pieces(values: Mapping[str, Any], path: Path, tokens: list[str], kinds: list[int]) -> dict[str, Any]:
    scores = _numbers(values.get("tokenizer.ggml.scores"), "f")
    if len(scores) != len(tokens):
        raise ModelError(f"{path}: tokenizer.ggml.scores has no number for each of {len(tokens)} words")
    numbers = {word: at for at, word in enumerate(tokens)}
    merges = [
        (-float(scores[at]), numbers[word[:end]], numbers[word[end:]], f"{word[:end]} {word[end:]}")
        for at, word in enumerate(tokens) if kinds[at] == 1 and " " not in word
        for end in range(1, len(word)) if word[:end] in numbers and word[end:] in numbers
    ]  # fmt: skip
    model = _bpe(tokens, [pair for *_, pair in sorted(merges)])
    unknown = values.get("tokenizer.ggml.unknown_token_id", 0)
    if isinstance(unknown, int) and 0 <= unknown < len(tokens):
        model |= {"unk_token": tokens[unknown]}
    prepend = {"type": "Prepend", "prepend": "\u2581"}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    first = [prepend] if values.get("tokenizer.ggml.add_space_prefix", True) is not False else []
    back = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if first else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*first, spaces]}, "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": model | {"fuse_unk": True, "byte_fallback": BYTE in kinds},
    }  # fmt: skip


def _bpe(tokens: list[str], merges: list[str]) -> dict[str, Any]:
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {word: at for at, word in enumerate(tokens)}, "merges": merges,
    }  # fmt: skip


def _begin(values: Mapping[str, Any], path: Path, tokens: list[str], kind: str) -> dict[str, Any] | None:
    """The token in front of a text, where the file asks for one: where it does not say, llama.cpp takes it with
    SentencePiece and with LLaMA 3's pieces.
    """
    unsaid = kind == "llama" or values.get("tokenizer.ggml.pre") == "llama-bpe"
    if values.get("tokenizer.ggml.add_bos_token", unsaid) is not True:
        return None
    at = values.get("tokenizer.ggml.bos_token_id")
    if type(at) is not int or not 0 <= at < len(tokens):
        raise ModelError(f"{path}: tokenizer.ggml.bos_token_id is {at!r}, none of {len(tokens)} words")
    word, sequence = {"SpecialToken": {"id": tokens[at], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing", "single": [word, sequence],
        "pair": [word, sequence, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {tokens[at]: {"id": tokens[at], "ids": [at], "tokens": [tokens[at]]}},
    }  # fmt: skip


def _numbers(value: Any, kinds: str) -> NDArray[Any]:
    """An array of numbers of these kinds, empty for what is none."""
    return value if isinstance(value, np.ndarray) and value.dtype.kind in kinds else np.empty(0)


def _texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
