"""Experts drawn by how popular they are: right in number, the same from the same seed; files and what is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest

from meshrt.errors import UsageError
from meshrt.programs.routing import make_routing


@pytest.mark.parametrize(("experts", "top"), [(1, 1), (5, 1), (7, 3), (64, 6), (4, 4)])
@pytest.mark.parametrize("text", ["uniform", "zipf:1.5", "lognormal"])
def test_a_token_takes_its_experts_in_order_and_none_twice(text: str, experts: int, top: int) -> None:
    drawn = make_routing(text, 3, experts, top, 5).draw(2, 4, 33)
    assert drawn.shape == (33, top)
    assert (np.diff(drawn, axis=1) > 0).all() and drawn.min() >= 0 and drawn.max() < experts


def test_a_draw_goes_by_seed_layer_and_step_alone() -> None:
    def draw(seed: int, layer: int, step: int) -> bytes:
        return make_routing("zipf:1", 4, 16, 3, seed).draw(layer, step, 50).tobytes()

    assert draw(1, 2, 3) == draw(1, 2, 3)
    assert len({draw(1, 2, 3), draw(2, 2, 3), draw(1, 1, 3), draw(1, 2, 4)}) == 4
    assert len({make_routing("lognormal", 2, 8, 2, seed).frequency.tobytes() for seed in (1, 2)}) == 2


@pytest.mark.parametrize("text", ["uniform", "zipf:1", "lognormal"])
def test_one_expert_a_token_comes_as_often_as_its_frequency_says(text: str) -> None:
    """Of 40,000 tokens; four standard deviations of a binomial."""
    routing = make_routing(text, 2, 6, 1, 3)
    for layer in range(2):
        share = routing.frequency[layer] / routing.frequency[layer].sum()
        share_drawn = np.bincount(routing.draw(layer, 0, 40000)[:, 0], minlength=6) / 40000
        assert (np.abs(share_drawn - share) < 4 * np.sqrt(share * (1 - share) / 40000)).all()


def test_two_experts_are_drawn_one_after_the_other() -> None:
    """The chance of {a, b} is pa pb / (1 - pa) + pb pa / (1 - pb)."""
    routing = make_routing("zipf:1", 1, 4, 2, 0)
    share = routing.frequency[0] / routing.frequency[0].sum()
    drawn = routing.draw(0, 0, 40000)
    for a in range(4):
        for b in range(a + 1, 4):
            want = share[a] * share[b] * (1 / (1 - share[a]) + 1 / (1 - share[b]))
            share_drawn = np.mean((drawn == [a, b]).all(axis=1))
            assert abs(share_drawn - want) < 4 * np.sqrt(want * (1 - want) / 40000)


def test_zipf_has_its_frequencies_in_another_order_in_each_layer() -> None:
    frequency = make_routing("zipf:2", 5, 9, 2, 0).frequency
    np.testing.assert_allclose(np.sort(frequency)[:, ::-1], np.tile(np.arange(1, 10.0) ** -2, (5, 1)))
    assert len({row.tobytes() for row in frequency}) == 5
    assert (make_routing("zipf:0", 2, 4, 2, 0).frequency == 1).all()


def test_a_file_of_each_layer_of_all_or_a_report(tmp_path: Path) -> None:
    file, rows = tmp_path / "r.json", [[1, 0, 3.5], [2, 2, 0], [9, 9, 9]]
    for data, want in (
        ({"tokens": rows}, rows[:2]),
        ({"tokens": rows[:1]}, [rows[0], rows[0]]),
        ({"result": {"experts": {"tokens": rows}}}, rows[:2]),
    ):
        file.write_text(json.dumps(data))
        routing = make_routing(str(file), 2, 3, 2, 0)
        assert routing.frequency.tolist() == want
        assert (routing.draw(0, 0, 20) == [0, 2]).all()  # what was never chosen never is


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("even", "as a file"), ("zipf", "as a file"), ("zipf:", "S of zipf:S"), ("zipf:-1", "S of zipf:S"),
        ("zipf:nan", "S of zipf:S"), ("zipf:11", "S of zipf:S"), ("", "as a file"),
    ],
)  # fmt: skip
def test_what_is_no_routing_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make_routing(text, 2, 4, 2, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "as a file"), ("{", "as a file"), ("{}", "no 'tokens'"), ('{"tokens": [1, 2, 3]}', "no 'tokens'"),
        ('{"tokens": []}', "no 'tokens'"), ('{"tokens": [[1, 2]]}', "has to be 3 numbers"),
        ('{"tokens": [[1, 2, -1]]}', "none below 0"), ('{"tokens": [[1, 2, NaN]]}', "none below 0"),
        ('{"tokens": [[1, 2, true]]}', "none below 0"), ('{"tokens": [[1, 2, "3"]]}', "none below 0"),
        ('{"tokens": [[1, 1, 1], [1, 1, 1]]}', "has 2 layers; the model has 4"),
        ('{"tokens": [[0, 0, 3]]}', "1 experts of a layer are ever chosen, and a token takes 2"),
        ('{"result": 3}', "no 'tokens'"), ('{"tokens": [[1, 2, 1e400]]}', "none below 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_said(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(UsageError, match=message) as caught:
        make_routing(str(tmp_path / "r.json"), 4, 3, 2, 0)
    assert "\n" not in str(caught.value)
