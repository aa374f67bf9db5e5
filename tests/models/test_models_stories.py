"""The generated stories: deterministic, varied, and correct enough to learn from."""

import re
import string
from collections import Counter

import pytest

from meshrt.models import stories as module
from meshrt.models.stories import RULES, stories


@pytest.fixture(scope="module")
def many() -> list[str]:
    return list(stories(11, 3000))


def test_stories_are_deterministic(many: list[str]) -> None:
    assert many[:50] == list(stories(11, 50))


def test_stories_of_another_seed_differ(many: list[str]) -> None:
    assert not set(many) & set(stories(12, 3000))


def test_stories_are_varied(many: list[str]) -> None:
    words = Counter(re.findall(r"[a-z]+", " ".join(many).lower()))
    assert len(set(many)) == len(many)
    assert len(words) > 800
    assert len({story[:60] for story in many}) > 2000
    # No story is a small change of another: of all runs of eight words, most occur once or twice.
    runs = Counter(run for story in many[:500] for run in zip(*(story.split()[i:] for i in range(8)), strict=False))
    assert sum(count <= 2 for count in runs.values()) > 0.8 * len(runs)


def test_stories_have_the_length_of_a_story(many: list[str]) -> None:
    lengths = [len(story.split()) for story in many]
    assert min(lengths) > 45 and max(lengths) < 160
    assert 80 < sum(lengths) / len(lengths) < 120


def test_stories_have_no_holes_left(many: list[str]) -> None:
    assert not [story for story in many if set(story) & set("{}<>|()_\n") or "  " in story]


def test_stories_have_the_right_articles(many: list[str]) -> None:
    assert not re.findall(r"\b[Aa] [aeiouAEIOU]\w*|\b[Aa]n [^aeiouAEIOU\W]\w*", " ".join(many))


def test_stories_start_sentences_with_capitals_and_close_quotes(many: list[str]) -> None:
    for story in many:
        assert story[0] in string.ascii_uppercase and story[-1] in '.!?"'
        assert story.count('"') % 2 == 0
        for word in re.findall(r'(?<!Mrs)(?<!Mr)[.!?] "?([a-z]\w*)', story):
            pytest.fail(f"sentence starts with {word!r}: {story}")


def test_stories_use_every_rule_and_every_line() -> None:
    """A rule that nothing leads to, or a hole that nothing fills, is a mistake of the grammar."""
    called = {name for lines in RULES.values() for line in lines for name in re.findall(r"<(\w+)>", line)}
    assert called | {"story"} == set(RULES)
    plots = Counter(re.search(r"<open> <(\w+)>", line)[1] for line in RULES["story"])  # type: ignore[index]  # every rule has it: a None fails here
    assert len(plots) == len(RULES["story"]) >= 10


def test_stories_pronouns_follow_the_hero(many: list[str]) -> None:
    """A girl who is alone in the first sentences is never a he there."""
    matches = [re.match(r"[^.]*\b(girl|boy) named (\w+)[^.]*\. (He|She)\b", story) for story in many]
    alone = [match for match in matches if match]
    assert len(alone) > len(many) / 5
    for match in alone:
        assert match[3] == {"girl": "She", "boy": "He"}[match[1]], match[0]
    assert module.Person("Ida", "girl", True).himself == "herself"
