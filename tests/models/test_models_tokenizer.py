"""Text to ids and back with the packaged tokenizer."""

import json
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrt.models.catalogue import find_model
from meshrt.models.errors import ModelError
from meshrt.models.stories import stories
from meshrt.models.tokenizer import decode, encode, load_tokenizer

TOKENIZER = load_tokenizer(find_model("llama-tiny"))


def test_tokenizer_adds_only_what_its_post_processor_says() -> None:
    assert encode(TOKENIZER, "") == [0]
    ids = encode(TOKENIZER, "Once upon a time")
    assert ids[0] == 0 and 0 not in ids[1:]


def test_tokenizer_special_tokens_are_left_out() -> None:
    assert decode(TOKENIZER, [*encode(TOKENIZER, "The fox."), 0]) == "The fox."


def test_tokenizer_compresses_stories() -> None:
    text = next(stories(5, 1))
    assert len(encode(TOKENIZER, text)) < len(text) / 2
    assert decode(TOKENIZER, encode(TOKENIZER, text)) == text


@given(st.text(max_size=50).filter(lambda text: "<|endoftext|>" not in text))
def test_tokenizer_roundtrip(text: str) -> None:
    ids = encode(TOKENIZER, text)
    assert decode(TOKENIZER, ids) == text
    assert all(0 <= i < 512 for i in ids)


@pytest.mark.parametrize("ids", [[-1], [2**40], ["a"]])
def test_tokenizer_bad_ids(ids: list[int]) -> None:
    with pytest.raises(ModelError, match="not token ids"):
        decode(TOKENIZER, ids)


def test_tokenizer_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--prompt-ids"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff\xfe", b'{"model": 3}'])
def test_tokenizer_bad_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_table_that_says_to_be_larger_than_it_is_is_not_made_room_for(tmp_path: Path) -> None:
    """The library would ask for 8 GB, and the process end where there are none; a table that is whole still loads."""
    data = json.loads((find_model("llama-tiny") / "tokenizer.json").read_text(encoding="utf-8"))
    data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Precompiled"}]}
    inner = data["normalizer"]["normalizers"][0]
    for table, refused in ((b"\xff" * 4 + bytes(60), "says that 4294967295 bytes"), (b"\x04" + bytes(7), None)):
        inner["precompiled_charsmap"] = b64encode(table).decode()
        (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
        if refused is None:
            assert load_tokenizer(tmp_path).get_vocab_size() == 512
        else:
            with pytest.raises(ModelError, match=refused):
                load_tokenizer(tmp_path)
