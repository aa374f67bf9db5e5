"""Whole numbers as a user writes them."""

import re

LARGEST = 2**53  # readers of JSON keep whole numbers exact up to here


def whole(text: str) -> int:
    """'12' -> 12: ASCII digits, a sign, spaces around. ValueError for anything else and for what is beyond LARGEST."""
    if re.fullmatch(r"\s*[+-]?[0-9]{1,16}\s*", text) is None or abs(int(text)) > LARGEST:
        raise ValueError(f"{text!r} is no whole number of at most {LARGEST}")
    return int(text)


def whole_numbers(text: str) -> list[int]:
    """'1,2,3' -> [1, 2, 3]. ValueError."""
    return [whole(part) for part in text.split(",")]
