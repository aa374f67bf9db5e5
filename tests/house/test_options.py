"""Groups of options: a program takes their fields as if they were its own."""

from typing import Annotated, Any

import pytest

import meshrt
from meshrt.errors import UsageError
from meshrt.options import AtLeast, grouped, options_of, values_of
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


def test_two_groups_with_one_name_are_no_program() -> None:
    def own(block: Any, *, first: Sampling, second: Both) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'top'"):
        grouped(own)
