"""`meshrt tune` and `run --tuned`: settings found by emulation, kept, and used."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from gpu_runs import Alone
from measure import on_one_rank

from meshrt.cli import cli
from meshrt.errors import LimitError, UsageError
from meshrt.mesh.devicefile import find_device
from meshrt.ranks.console import Console
from meshrt.studies.sweep import RunJob, run_alone
from meshrt.studies.tune import answers as tuned
from meshrt.studies.tune import search as tune
from meshrt.studies.tune import trials
from meshrt.studies.tune.printed import print_answer
from meshrt.studies.tune.search import Space
from meshrt.studies.tune.trials import Question, decode_cycles

Run = Callable[..., Any]
SIDES = ("--sides", "6", "--decode-sides", "8")
LENGTHS = ("--prompt-tokens", "5", "--new-tokens", "9", "--layers-run", "1")
MESHES = Space(sides=(6, 8), decode_sides=(8, 12))


def question(prompt: int = 5, new: int = 9, layers_run: int | None = 1, **limits: int) -> Question:
    """One layer stands for all four."""
    return tuned.make_question("llama-tiny", find_device("wse2", **limits), prompt, new, "shift", None, layers_run)


def search(comm: Any, space: Space = MESHES, prompt: int = 5, new: int = 9, **limits: int) -> dict[str, Any]:
    return tune.tune(comm, Console(), question(prompt, new, **limits), space)


@pytest.fixture(scope="module")
def searched() -> Callable[[Any], dict[str, Any]]:
    """`searched(comm)`: what the search above finds on one rank; it searches once."""
    answers: list[dict[str, Any]] = []

    def once(comm: Any) -> dict[str, Any]:
        if not answers:
            answers.append(search(comm))
        return json.loads(json.dumps(answers[0]))

    return once


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "meshrt" / "tuned"


@pytest.fixture
def tell(run_meshrt: Run, tmp_path: Path) -> Run:
    """Run `meshrt ARGS` with a cache folder of its own."""

    def run(*args: str, **options: Any) -> Any:
        return run_meshrt(*args, env={"XDG_CACHE_HOME": str(tmp_path)}, **options)

    return run


# ------------------------------------------------------------------------------------------------------- the search


@pytest.mark.mpi(ranks=[1, 2])
def test_the_answer_is_the_fastest_of_the_pairs_that_were_run_and_the_same_on_any_ranks(comm, searched):
    measure = partial(search, new=2) if comm.size > 1 else searched
    answer = measure(comm)
    totals = [pair["total"] for pair in answer["pairs"] if pair["total"] is not None]
    (chosen,) = (pair for pair in answer["pairs"] if pair["chosen"])
    assert chosen["options"] == answer["choice"]
    assert chosen["total"] == answer["cycles"]["total"] == min(totals)
    tried = {(candidate["part"], candidate["side"]) for candidate in answer["candidates"]}
    assert {("prefill", 6), ("prefill", 8), ("decode", 8), ("decode", 12)} <= tried
    assert {candidate["phases"] for candidate in answer["candidates"]} == {1, 2, 3}
    assert len({candidate["head_groups"] for candidate in answer["candidates"]}) > 1
    every = comm.allgather(json.dumps({key: value for key, value in answer.items() if key != "host"}))
    assert set(every) == {every[0]}
    alone = on_one_rank(comm, measure) if comm.size > 1 else answer
    assert json.dumps({key: value for key, value in alone.items() if key != "host"}) == every[0]


@pytest.mark.mpi(ranks=[1])
def test_the_total_is_what_a_run_of_all_tokens_takes(comm, searched):
    answer = searched(comm)
    options = {**answer["choice"], "prompt_tokens": 5, "max_new_tokens": 9, "layers_run": 1}
    side = int(options.pop("mesh").partition("x")[0])
    outcome = run_alone(RunJob("llama", (side, side), find_device("wse2"), options))
    assert outcome.report is not None
    assert answer["cycles"]["total"] == pytest.approx(outcome.report["measured"]["critical_path"]["cycles"], rel=0.02)
    assert answer["cycles"]["prefill"] == trials.phase_cycles(outcome.report)["prefill"]


@pytest.mark.mpi(ranks=[1])
def test_other_cores_for_decode_are_chosen_only_if_the_move_pays(comm, searched):
    answer = searched(comm)
    (stays,) = (pair for pair in answer["pairs"] if pair["options"]["decode_mesh"] is None)
    (moves,) = (pair for pair in answer["pairs"] if pair["options"]["decode_mesh"] is not None)
    assert moves["cycles"]["change of cores"] > 0
    assert "change of cores" not in stays["cycles"]
    assert moves["cycles"]["decode"] < stays["cycles"]["decode"], "else the search would not have gone there"
    assert (answer["choice"]["decode_mesh"] is None) == (stays["total"] <= moves["total"])


def test_tokens_are_summed_along_straight_lines_between_the_contexts():
    query = question(10, 6)  # decodes five tokens, with 10 to 14 in the cache
    assert query.contexts == (10, 12, 14)
    assert decode_cycles(query, ((10, 100.0), (12, 120.0), (14, 200.0))) == 100 + 110 + 120 + 160 + 200
    assert question(10, 2).contexts == (10,)
    assert question(10, 1).contexts == ()


@pytest.mark.mpi(ranks=[1])
def test_one_new_token_needs_no_decode(comm):
    answer = search(comm, Space(sides=(8,)), new=1)
    assert {candidate["part"] for candidate in answer["candidates"]} == {"prefill"}
    assert answer["cycles"]["decode"] == 0
    assert answer["cycles"]["total"] == answer["cycles"]["prefill"] + answer["cycles"]["first token"]


@pytest.fixture(scope="module")
def freely() -> Callable[[Any], dict[str, Any]]:
    """`freely(comm)`: what a search finds whose decode may be on 6 x 6 or 8 x 8 cores; it searches once."""
    answers: list[dict[str, Any]] = []

    def once(comm: Any) -> dict[str, Any]:
        if not answers:
            answers.append(search(comm, Space(sides=(8,), regions=(1,), decode_sides=(6, 8)), new=2))
        return answers[0]

    return once


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("only", [{"decode_sides": (6,)}, {"decode_sides": (6, 8), "decode_regions": (2,)}], ids=str)
def test_decode_runs_on_no_other_cores_than_asked_for(only: dict[str, tuple[int, ...]], comm, freely):
    """On 8 x 8 cores in one region, where prefill is, decode would be the fastest: nothing would have to move."""
    answer = search(comm, Space(sides=(8,), regions=(1,), **only), new=2)
    decode = [candidate for candidate in answer["candidates"] if candidate["part"] == "decode"]
    assert {candidate["side"] for candidate in decode} <= set(only["decode_sides"])
    assert {candidate["regions"] for candidate in decode} <= set(only.get("decode_regions", (1, 2, 4)))
    assert answer["choice"]["decode_mesh"] in ("6x6", "8x8")
    assert freely(comm)["choice"]["decode_mesh"] is None, "which is why it is tried where nothing rules it out"


def test_all_layers_are_all_layers_whatever_the_number():
    queries = [
        tuned.make_question("llama-tiny", find_device("wse2"), 5, 9, "shift", None, layers) for layers in (4, 99)
    ]
    assert queries == [question(layers_run=None), question(layers_run=None)]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.all
def test_what_does_not_fit_is_listed_with_the_reason_and_spread_over_regions(comm):
    answer = search(comm, Space(sides=(8,), decode_sides=(8,)), new=2, core_memory=20000)
    refused = [candidate for candidate in answer["candidates"] if candidate["refused"]]
    assert refused
    assert all(
        "the limit is 20000" in candidate["refused"] and candidate["cycles"] is None
        for candidate in refused
        if candidate["phases"] < 3
    )
    assert [candidate["regions"] for candidate in refused if candidate["part"] == "prefill"] == [1, 2]
    assert answer["choice"]["regions"] == 4
    fit = [candidate for candidate in answer["candidates"] if candidate["cycles"] is not None]
    assert all(candidate["memory_bytes"] <= 20000 for candidate in fit)


@pytest.mark.mpi(ranks=[1])
def test_nothing_fits(comm):
    answer = search(comm, Space(sides=(2,)), core_memory=3000)
    assert answer["choice"] is None
    assert {candidate["regions"] for candidate in answer["candidates"]} == {1, 2, 4}
    with pytest.raises(LimitError, match=r"the limit is 3000.*--core-memory"):
        tuned.check_found(answer)


def test_sides_are_searched_ever_nearer_to_the_best(monkeypatch: pytest.MonkeyPatch):
    """A made-up machine that is the fastest at 330 x 330, and too small below 200."""
    query = tuned.make_question("llama3-8b", find_device("wse2"), 64, 1, "shift", None)
    seen: list[int] = []

    def cost(*given: Any) -> dict[int, float]:
        seen.extend(given[4])
        return {side: float("inf") if side < 200 else abs(side - 330) for side in given[4]}

    monkeypatch.setattr(tune, "try_sides", cost)
    tune.find_cores(query, Space(), {}, lambda *_: None, "prefill")
    assert seen[:7] == [750, 630, 510, 390, 270, 150, 30]
    assert 330 in seen and len(seen) <= 11
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Space(sides=(0,)), "--sides"),
        (Space(decode_sides=(800,)), "--decode-sides.*750 x 994"),
        (Space(sides=(400,), regions=(3,)), "--regions: none of 3"),
        (Space(decode_regions=(5,)), "--decode-regions: none of 5"),
    ],
)
def test_a_search_that_cannot_be(space: Space, message: str):
    with pytest.raises(UsageError, match=message):
        tune.check(question(), space)


@pytest.mark.parametrize("space", [Space(decode_sides=(8,)), Space(decode_regions=(1,))])
def test_where_nothing_is_decoded_no_cores_are_for_it(space: Space) -> None:
    with pytest.raises(UsageError, match="is for decode, and --new-tokens 1 has none"):
        tune.check(question(new=1), space)


# -------------------------------------------------------------------------------------------------------- the cache


def test_tune_then_run(tell: Run, tmp_path: Path):
    """End to end: the table, the cached answer, the run that uses it, and what it must not be combined with."""
    code, out, err, _ = tell("tune", "llama-tiny", *LENGTHS, *SIDES, "--json", str(tmp_path / "a.json"))
    assert (code, err) == (0, "")
    answer = json.loads((tmp_path / "a.json").read_text())
    assert answer["host"]["cached"] is False
    for word in ("6x6", "8x8", "re-placement", "chosen", "Chosen for prefill", "trapezoid", "tokens a second"):
        assert word in out
    assert "cached" not in out
    code, out, err, _ = tell("tune", "llama-tiny", *LENGTHS, *SIDES, "--json", str(tmp_path / "b.json"))
    assert (code, err) == (0, "")
    assert out.startswith("cached: ")
    again = json.loads((tmp_path / "b.json").read_text())
    assert again.pop("host")["cached"] is True
    assert {**again, "host": answer["host"]} == answer

    run = ("run", "llama-tiny", "--prompt", "One day", "--max-new-tokens", "3")
    untuned = json.loads(tell(*run, "--json", "-").stdout)
    for ranks in (1, 2):
        code, out, err, _ = tell(*run, "--tuned", "--json", "-", ranks=ranks)
        assert (code, err) == (0, "")
        report = json.loads(out)
        assert report["result"]["text"] == untuned["result"]["text"]
        assert "x".join(map(str, report["mesh"])) == answer["choice"]["mesh"]
        for name in ("regions", "decode_mesh", "decode_regions", "head_groups", "phases", "decode_phases"):
            assert report["arguments"][name] == answer["choice"][name]
    code, out, err, _ = tell(*run, "--tuned")
    assert code == 0
    assert out.startswith("tuned for 5 prompt tokens and 9 new ones: prefill on ")
    code, out, err, _ = tell(*run, "--tuned", "--mesh", "8x8", ranks=2)
    assert code == 2
    assert err == "meshrt: error: --tuned chooses --mesh itself: leave out one of the two\n"
    code, out, err, _ = tell(*run, "--tuned", "--kv", "concat")
    assert code == 2
    assert "`meshrt tune llama-tiny --prompt-tokens " in err


@pytest.mark.mpi(ranks=[1])
def test_again_measures_anew_and_a_damaged_file_is_replaced(comm, cache: Path, capsys: pytest.CaptureFixture[str]):
    query, space = question(new=1), Space(sides=(8,))

    def ask(again: bool = False) -> dict[str, Any]:
        return tuned.answer(comm, Console(loud=True), query, space, again)

    first = ask()
    (path,) = cache.iterdir()
    assert path.name.startswith("llama-tiny-wse2-")
    sound = path.read_bytes()
    path.write_bytes(sound.replace(b"8x8", b"9x9"))
    assert ask()["choice"]["mesh"] == "9x9", "what was kept, not measured anew"
    assert ask(again=True)["choice"] == first["choice"]
    assert path.read_bytes() == sound
    for damaged in (
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        sound.replace(b'"8x8"', b"8"),
        sound.replace(b'"subject"', b'"topic"'),
    ):
        path.write_bytes(damaged)
        assert tuned.recall(query, space) == (None, f"{path} is damaged")
        with pytest.raises(UsageError, match=f"{path.name} cannot be read"):
            tuned.nearest(run_options(), None, query.device)
    capsys.readouterr()
    answer = ask()
    assert "is damaged: tuning again" in capsys.readouterr().out
    assert answer["host"]["cached"] is False
    assert path.read_bytes() == sound
    assert list(cache.iterdir()) == [path], "nothing temporary is left"
    print_answer(answer)
    assert "chosen" in capsys.readouterr().out


def run_options(**given: Any) -> dict[str, Any]:
    """Arguments of a run of llama-tiny, by default with a prompt of five tokens."""
    own = {"model": "llama-tiny", "max_new_tokens": 9, "kv": "shift", "dtype": None, "context": 0, "prompt": None}
    return own | {"prompt_ids": None, "prompt_tokens": 5} | tuned.CHOSEN | given


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("llama-tiny --tuned --phases 2", "--tuned chooses --phases itself"),  # the default, but asked for
        ("llama-tiny --tuned --on gpu", "--tuned is for models on the mesh, and this is llama-tiny on gpu"),
        ("gemm --tuned", "this is gemm on mesh: leave it away"),
    ],
)
def test_tuned_is_refused_beside_what_it_chooses_and_where_nothing_is_tuned(line: str, says: str) -> None:
    with pytest.raises(click.UsageError) as refusal:
        cli.main(["run", *line.split()], standalone_mode=False)
    assert says in refusal.value.format_message()


def test_the_nearest_lengths_are_used(cache: Path, tmp_path: Path):
    (tmp_path / "long.txt").write_text("One day " * 30 + "\n")
    (tmp_path / "several.txt").write_text(("One day " * 30 + "\n") * 2 + "A\n")
    made = []
    for prompt, new in ((10, 10), (100, 10), (10, 400)):
        query = question(prompt, new)
        choice = {**tuned.CHOSEN, "mesh": "8x8"}
        answer = {"prompt_tokens": prompt, "new_tokens": new, "candidates": [], "why": [], "cycles": {"total": 1.0}}
        tuned.make_folder()
        tuned.keep(query, Space(), {**answer, "choice": choice, "host": {}})
        made.append(answer)
    device = question().device
    for given, best in (
        ({}, 0),
        ({"prompt_tokens": 30}, 0),
        ({"prompt_tokens": 33}, 1),  # 33 / 10 > 100 / 33
        ({"prompt_tokens": None, "prompt_ids": "1,2,3", "max_new_tokens": 64}, 2),
        ({"prompt_tokens": None, "context": 90}, 1),
        ({"prompt_tokens": None, "prompt": f"@{tmp_path / 'long.txt'}"}, 1),
        ({"prompt_tokens": None, "prompts": str(tmp_path / "several.txt")}, 1),
    ):
        nearest = tuned.nearest(run_options(**given), None, device)
        assert (nearest["prompt_tokens"], nearest["new_tokens"]) == (
            made[best]["prompt_tokens"],
            made[best]["new_tokens"],
        )
    for other in (find_device("ideal"), find_device("wse2", core_memory=50000)):
        with pytest.raises(UsageError, match=f"nothing is tuned for llama-tiny on {other.name}"):
            tuned.nearest(run_options(), None, other)
    machine = {"device": "my own.toml", "core_memory": 50000, "route_entries": None}
    command = "--prompt-tokens 5 --new-tokens 9 --device 'my own.toml' --core-memory 50000 --kv concat --dtype float32`"
    with pytest.raises(UsageError, match=command):
        tuned.nearest(run_options(kv="concat", dtype="float32"), None, find_device("ideal"), machine)
    with pytest.raises(UsageError, match="before standard input is read: give --prompts a file"):
        tuned.nearest(run_options(prompt_tokens=None, prompts="-"), None, device)
    shape = run_options(model="llama3-8b", prompt_tokens=None)
    assert tuned.length_of_prompt(shape) == 128, "as the run has it, which needs no tokenizer"
    with pytest.raises(UsageError, match="--tuned chooses --decode-mesh itself"):
        tuned.nearest(run_options(decode_mesh="8x8"), None, device)


def test_without_prefill_the_run_is_on_the_cores_of_decode(cache: Path):
    """--context: what was chosen for decode is all there is; other systems were not tuned."""
    choice = {**tuned.CHOSEN, "mesh": "8x8", "decode_mesh": "4x4", "regions": 1, "decode_regions": 2, "head_groups": 1}
    answer = {"prompt_tokens": 10, "new_tokens": 9, "candidates": [], "why": [], "cycles": {"total": 1.0}}
    tuned.make_folder()
    tuned.keep(question(10, 9), Space(), {**answer, "choice": choice, "host": {}})
    alone, console = Alone(), Console(loud=False)
    for given, want in (
        ({}, choice),
        (
            {"prompt_tokens": None, "context": 10},
            {"mesh": "4x4", "decode_mesh": None, "regions": 2, "decode_regions": None},
        ),
    ):
        applied = tuned.apply(alone, console, run_options(system="waferllm", **given), None, question().device)
        assert {name: applied[name] for name in want} == want
    for given, says in (
        ({"system": "t10"}, "--tuned is for waferllm"),
        ({"system": "waferllm", "as_published": True}, "--as-published was not tuned: leave one of them away"),
    ):
        with pytest.raises(UsageError, match=says):
            tuned.apply(alone, console, run_options(**given), None, question().device)


def test_a_cache_folder_that_cannot_be_is_said_before_the_search(tell: Run, tmp_path: Path):
    (tmp_path / "meshrt").write_text("a file where the folder should be")
    code, out, err, _ = tell("tune", "llama-tiny", *LENGTHS, ranks=2)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "set XDG_CACHE_HOME" in err


def test_sides_that_are_no_numbers(tell: Run):
    code, _, err, _ = tell("tune", "llama-tiny", *LENGTHS, "--sides", "4;8")
    assert code == 2
    assert "is not a list of numbers such as 480,600" in err
