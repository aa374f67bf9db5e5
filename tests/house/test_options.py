"""Groups of options: a program takes their fields as if they were its own."""

from typing import Annotated, Any, Literal

import pytest

import meshrt
from meshrt.errors import UsageError
from meshrt.options import HOST, AtLeast, grouped, options_of, values_of
from meshrt.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Sampling:
    top: Annotated[int, "of the likeliest", AtLeast(1)] = 3
    heat: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Both(Sampling):
    more: bool = False


def run(block: Any, *, sampling: Sampling, name: Annotated[str, "whose"] = "a") -> dict[str, Any]:
    """One line."""
    return {"sampling": sampling, "name": name}


def test_fields_of_a_group_are_options_with_what_they_say() -> None:
    options = {option.name: option for option in options_of("own", grouped(run))}
    assert [(name, option.kind, option.default) for name, option in options.items()] == [
        ("top", int, 3), ("heat", float, 0.5), ("name", str, "a"),
    ]  # fmt: skip
    assert (options["top"].help, options["top"].least) == ("of the likeliest", 1)
    assert grouped(run).__doc__ == "One line."


def test_a_program_gets_its_groups_with_what_was_given() -> None:
    assert grouped(run)(None) == {"sampling": Sampling(), "name": "a"}
    assert grouped(run)(None, heat=2.0, name="b") == {"sampling": Sampling(heat=2.0), "name": "b"}
    with pytest.raises(TypeError, match="warmth"):
        grouped(run)(None, warmth=2.0)


def test_a_users_program_may_have_groups() -> None:
    @grouped
    def own(block: Any, *, both: Both) -> dict[str, Any]:
        return values_of(both)

    assert meshrt.run(own, mesh=(1, 1), top=5).result == {"top": 5, "heat": 0.5, "more": False}
    assert meshrt.run(own, mesh=(1, 1)).arguments == {"top": 3, "heat": 0.5, "more": False}
    with pytest.raises(UsageError, match="top is 0; it starts at 1"):
        meshrt.run(own, mesh=(1, 1), top=0)


def test_limits_hold_with_or_without_a_help_before_them() -> None:
    def own(
        block: Any, *, a: Annotated[int, AtLeast(1)] = 3, b: Annotated[int, AtLeast(1), "how many"] = 3,
        c: Annotated[str, "host"] = "x", d: Annotated[str, "file"] = "y", e: Annotated[int, AtLeast(1), HOST] = 1,
    ) -> dict[str, Any]:  # fmt: skip
        return {}

    options = {option.name: option for option in options_of("own", own)}
    assert [options[name].least for name in "abe"] == [1, 1, 1]
    assert [options[name].help for name in "abcde"] == ["", "how many", "host", "file", ""]
    assert [options[name].reported for name in "ce"] == [True, False] and not options["d"].file


def test_a_literal_is_what_it_says(run_meshrt: Any, tmp_path: Any) -> None:
    """Not its text, from a script and from the command; a text is not taken for a number."""

    def own(
        block: Any, *, bits: Literal[4, 8] = 4, exact: Literal[True, False] = True, share: Literal[0.5, 1.0] = 0.5,
        word: Literal["4", "8"] = "4",
    ) -> dict[str, Any]:  # fmt: skip
        return {"all": [bits, exact, share, word]}

    assert meshrt.run(own, mesh=(1, 1)).result["all"] == [4, True, 0.5, "4"]
    given = meshrt.run(own, mesh=(1, 1), bits=8, exact=False, share=1.0, word=8)
    assert given.result["all"] == [8, False, 1.0, "8"] == list(given.arguments.values())
    for wrong, text in (
        ({"bits": 5}, "bits is 5; there are 4, 8"),
        ({"exact": 1}, "exact is 1; there are True, False"),
    ):
        with pytest.raises(UsageError, match=text):
            meshrt.run(own, mesh=(1, 1), **wrong)
    program = tmp_path / "own.py"
    program.write_text(
        "from typing import Literal\ndef run(block, *, bits: Literal[4, 8] = 4):\n    return {'b': bits + 1}\n"
    )
    for line, answer in (((), "b: 5\n"), (("--bits", "8"), "b: 9\n")):
        done = run_meshrt("run", str(program), *line)
        assert done.code == 0 and done.stdout.startswith(answer), done.stderr


def test_two_groups_with_one_name_are_no_program() -> None:
    def own(block: Any, *, first: Sampling, second: Both) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'top'"):
        grouped(own)
