"""Where a prompt comes from, what goes to standard output, and dialogues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from mpi4py import MPI
from mpi_jobs import child_environment, find_mpirun

from meshrt.commands.chat import talk
from meshrt.emulate import emulate
from meshrt.errors import UsageError
from meshrt.launch import local
from meshrt.mesh.block import Block
from meshrt.models.catalogue import find_model
from meshrt.models.tokenizer import decode, encode, load_tokenizer
from meshrt.neuron.device import TRN1
from meshrt.program import load_program
from meshrt.programs.generation.dialogue import Dialogue
from meshrt.programs.generation.given import prompt_text
from meshrt.programs.generation.options import GenerationOptions
from meshrt.programs.generation.several import read_prompts
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.ranks.console import make_console
from meshrt.ranks.control import Control
from meshrt.reports.report import Report

Run = Callable[..., Any]
SHORT = ("run", "llama-tiny", "--max-new-tokens", "4", "--prompt")


def say(monkeypatch: pytest.MonkeyPatch, rank: int, data: bytes) -> IO[str]:
    """Let standard input be this, at rank 0 alone: elsewhere nobody may read it."""
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    stream = os.fdopen(reader)
    monkeypatch.setattr(sys, "stdin", stream if rank == 0 else None)
    return stream


@pytest.mark.mpi(ranks=[1, 3])
def test_all_ranks_have_the_text_that_rank_0_reads(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = Control(comm, Board.alone(), "test")
    (tmp_path / "p").write_bytes(
        "\ufeffcaf\u00e9\r\nau lait\r\n".encode()
    )  # each rank has a folder: that of rank 0 is read
    for given, text in (
        ("-", "two\nlines"),
        (f"@{tmp_path}/p", "caf\u00e9\r\nau lait"),
        ("@@home", "@home"),
        ("@@", "@"),
        ("-5 degrees", "-5 degrees"),
        (" @", " @"),
    ):
        with say(monkeypatch, comm.rank, b"two\nlines\n"):
            assert prompt_text(control, given) == text
    for data, words in ((b"\n", "has no text"), (b"", "has no text"), (b"a\xff", "UTF-8")):
        with say(monkeypatch, comm.rank, data), pytest.raises(UsageError, match=f"^--prompt - .*{words}"):
            prompt_text(control, "-")


def test_the_answer_alone_is_on_standard_output(run_meshrt: Run, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("The little dog\n")
    plain = run_meshrt(*SHORT, "The little dog")
    finished = run_meshrt(*SHORT, f"@{tmp_path}/p", "--text", "--json", str(tmp_path / "json"))
    report = json.loads((tmp_path / "json").read_text())
    assert (finished.code, finished.stdout.strip()) == (0, report["result"]["text"].strip())
    assert plain.stdout.startswith("The little dog" + finished.stdout)
    assert "memory of" in finished.stderr and plain.stderr == ""
    quiet = run_meshrt(*SHORT, f"@{tmp_path}/p", "--text", "--quiet", "--on", "arm")
    assert (quiet.code, quiet.stderr) == (0, "") and quiet.stdout.count("\n") == 1 < len(quiet.stdout)


def test_each_of_several_prompts_has_its_answer(run_meshrt: Run, tmp_path: Path) -> None:
    """Lines are texts as they stand, also with an @ before them."""
    (tmp_path / "p").write_text("One day\n\n@home\n-\n")
    line = ("run", "lowrank", "--prompts", str(tmp_path / "p"), "--max-new-tokens", "4")
    report = json.loads(run_meshrt(*line, "--json", "-").stdout)
    texts = [request["text"].strip() for request in report["result"]["requests"]]
    assert [text.strip() for text in run_meshrt(*line, "--text", "-q").stdout.splitlines()] == texts
    assert run_meshrt(*line).stdout.startswith("One day")


LINES = 'One day\n\n@home\n{"prompt": "The little dog"}\n'
ONE_EACH: dict[str, dict[str, Any]] = {
    "mesh": {"mesh": (4, 4), "core_memory": 2**20},
    "neuron": {"cores": 4},
    "arm": {"cores": 4},
}


def written(comm: MPI.Intracomm, folder: Path, text: str) -> Path:
    """A file that all ranks read, of one of them: who opens it to write empties it."""
    file = Path(comm.bcast(str(folder))) / "p"
    if comm.rank == 0:
        file.write_text(text)
    comm.Barrier()
    return file


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("machine", ONE_EACH)
def test_each_prompt_of_a_file_takes_what_it_takes_alone(
    comm: MPI.Intracomm, tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: str
) -> None:
    """Text, counts and times, to the bit; the report adds counts and times up, and has the most of peaks."""
    file = written(comm, tmp_path, LINES)
    program, console = load_program("llama", machine), make_console(comm.rank, comm.size, quiet=True, alone=True)
    arguments, settings = {"max_new_tokens": 3, "layers": 1}, ONE_EACH[machine]
    whole = emulate(comm, Board.alone(), program, arguments | {"prompts": str(file)}, console=console, **settings)
    text = capsys.readouterr().out
    if whole is None:
        assert comm.rank and text == ""
        return
    assert [line.strip() for line in text.splitlines()] == [
        request["text"].strip() for request in whole["result"]["requests"]
    ]
    alone = []
    for prompt in ("One day", "@@home", "The little dog"):
        report = emulate(MPI.COMM_SELF, Board.alone(), program, arguments | {"prompt": prompt}, **settings)
        assert report is not None
        alone.append(report)
    assert whole["result"]["requests"] == [report["result"] for report in alone]
    assert whole["runs"] == [{key: report[key] for key in ("measured", "phases")} for report in alone]
    added = {
        "mesh": ("hops", "messages", "macs", "link_bytes.total", "critical_path.cycles", "energy.mean"),
        "neuron": ("hbm_bytes.total", "flops", "critical_path.seconds", "engines.tensor.busy_seconds", "energy.low"),
        "arm": ("instructions.total", "dram_bytes.read", "critical_path.seconds", "idle_seconds", "energy.mean"),
    }[machine]
    most = {
        "mesh": ("max_hops", "memory_bytes.max", "route_entries.max", "out_of_order.longest_wait", "cores_used"),
        "neuron": ("sbuf_bytes.max", "memory_bytes.max"),
        "arm": ("registers.max", "memory_bytes.max"),
    }[machine]
    parts = {"": [Report(report) for report in alone], **dict.fromkeys(Report(alone[0]).phases, alone)}
    for name in parts:
        seen = [Report(report).measured if not name else Report(report).phase(name) for report in (whole, *alone)]
        for path in added:
            total, *each = (at(part, path) for part in seen)
            assert total == pytest.approx(sum(each), rel=1e-12) and (total > 0 or name), (name, path)
        for path in most if machine == "mesh" or not name else ():
            total, *each = (at(part, path) for part in seen)
            assert total == max(each), (name, path)
    if machine == "neuron":  # a share of the time: by its definition
        flops, seconds = whole["measured"]["flops"], whole["measured"]["critical_path"]["seconds"]
        assert whole["measured"]["mfu"] == pytest.approx(flops / seconds / 4 / TRN1.peak_flops, rel=1e-9)
    assert Report(whole).phase("prefill", "tokens") == sum(len(report["result"]["prompt_ids"]) for report in alone)
    assert "3 runs, each on a machine as new" in Report(whole).table()


def at(part: Any, path: str) -> Any:
    for name in path.split("."):
        part = part[name]
    return part


@pytest.mark.mpi(ranks=[2])
def test_many_prompts_give_back_what_each_took(comm: MPI.Intracomm, tmp_path: Path) -> None:
    """A machine's communicators among it, of which a process has two thousand."""
    file = written(comm, tmp_path, "a\n" * 3)
    program, freed = load_program("llama", "mesh"), []
    made = Block.close
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Block, "close", lambda block: (freed.append(block), made(block)))
        arguments = {"prompts": str(file), "max_new_tokens": 1, "layers": 1}
        emulate(comm, Board.alone(), program, arguments, payload=False, mesh=(2, 2), core_memory=2**20)
    assert len(freed) == 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--maps", "{tmp}/m.npz"), "--maps is of one run"),
        (("--trace", "{tmp}/t"), "--trace is of one run"),
        (("--goal", "{tmp}/g"), "--goal is of one run"),
        (("--on", "neuron", "--trace", "{tmp}/t"), "--trace is of one run"),
        (("--on", "arm", "--trace", "{tmp}/t"), "--trace is of one run"),
        (("--on", "arm", "--max-new-tokens", "5000"), "positions of the model"),
        (("--context", "4", "--payload", "none"), "has prompts already"),
    ],
)
def test_what_is_of_one_prompt_is_refused_before_any_is_answered(
    run_meshrt: Run, tmp_path: Path, given: tuple[str, ...], says: str
) -> None:
    (tmp_path / "p").write_text(LINES)
    finished = run_meshrt(
        "run", "llama-tiny", "--prompts", str(tmp_path / "p"), *(g.format(tmp=tmp_path) for g in given)
    )
    assert (finished.code, finished.stdout) == (2, "") and says in finished.stderr and finished.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_what_fits_is_the_prompt_that_takes_most(run_meshrt: Run, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("One day\n" + "There was a little girl " * 3 + "\nA\n")
    line = ("fit", "llama-tiny", "--mesh", "4x4", "--max-new-tokens", "4", "--format", "json", "--no-search")
    several = json.loads(run_meshrt(*line, "--prompts", str(tmp_path / "p")).stdout)
    longest = json.loads(run_meshrt(*line, "--prompt", "There was a little girl " * 3).stdout)
    assert several == longest


def test_a_prompt_ends_with_its_line_and_not_where_unicode_breaks_one(tmp_path: Path) -> None:
    """JSON has such breaks within its texts as they are."""
    texts = ["One\u2028day", "The\x0cdog", "Tom\u2028and\x85Lily"]
    file, folder = tmp_path / "prompts", find_model("llama-tiny")
    lines = [*texts[:2], json.dumps({"prompt": texts[2]}, ensure_ascii=False)]
    file.write_bytes("{}\r\n{}\r{}\n".format(*lines).encode())
    prompts = read_prompts(
        Control(Alone(), Board.alone(), "test"), folder, 4096, GenerationOptions(prompts=str(file))
    )  # fmt: skip
    tokenizer = load_tokenizer(folder)
    assert [[*prompt.ids] for prompt in prompts] == [encode(tokenizer, text) for text in texts]


@pytest.mark.parametrize("asks", ["max_tokens", "temperature"])
def test_what_one_prompt_of_a_file_asks_for_is_not_left_aside(asks: str, tmp_path: Path) -> None:
    """What else is beside a text, such as a number of its own, is nobody's."""
    file = tmp_path / "prompts"
    file.write_text(f'{{"prompt": "A", "id": 7}}\n{{"prompt": "B", "{asks}": 3}}\n')
    with pytest.raises(UsageError, match=f"prompts, line 2: asks for '{asks}', and all prompts of a run are answered"):
        read_prompts(
            Control(Alone(), Board.alone(), "test"), find_model("llama-tiny"), 512, GenerationOptions(prompts=str(file))
        )


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("machine", ["mesh", "neuron", "arm", "gpu"])
def test_prompts_from_files_and_from_standard_input_are_alike(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    machine: str,
) -> None:  # fmt: skip
    """On every machine; the answer is alone on standard output."""
    file = written(comm, tmp_path, "The little dog\n")
    settings: dict[str, Any] = ONE_EACH.get(machine, {"tp": 4})
    program, arguments = load_program("llama", machine), {"max_new_tokens": 2, "layers": 1}
    ways = (
        {"prompt": "The little dog"},
        {"prompt": f"@{file}"},
        {"prompts": str(file)},
        {"prompt": "-"},
        {"prompts": "-"},
    )
    answers = []
    for given in ways:
        console = make_console(comm.rank, comm.size, quiet=True, alone=True)
        with say(monkeypatch, comm.rank, b"The little dog\n"):
            report = emulate(comm, Board.alone(), program, arguments | given, console=console, **settings)
        ids = None if report is None else report["result"].get("requests", [report["result"]])[0]["token_ids"]
        answers.append((ids, capsys.readouterr().out))
    assert all(answer == answers[0] for answer in answers)
    assert bool(answers[0][1].strip()) == (comm.rank == 0) and answers[0][1].count("\n") == (comm.rank == 0)


def test_who_writes_may_take_time(run_meshrt: Run) -> None:
    """More than the watch over ranks has patience for."""
    slow = "import subprocess, sys, time; time.sleep(2); print('The little dog')"
    mpirun = find_mpirun()
    chat = [*local.mpirun_argv(2, mpirun), sys.executable, "-m", "meshrt.cli", "chat", "llama-tiny"]
    with subprocess.Popen([sys.executable, "-c", slow], stdout=subprocess.PIPE) as writer:
        done = subprocess.run(
            [*chat, "--max-new-tokens", "4"], stdin=writer.stdout, capture_output=True, text=True, timeout=60,
            env=child_environment(mpirun) | {"MESHRT_WATCHDOG_SECONDS": "1"}, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, run_meshrt(*SHORT, "The little dog", "--text", "-q").stdout)


def test_ranks_hear_standard_input_under_a_launcher(run_meshrt: Run) -> None:
    mpirun = find_mpirun()
    line = [*local.mpirun_argv(2, mpirun), sys.executable, "-m", "meshrt.cli", *SHORT, "-", "--text", "-q"]
    done = subprocess.run(
        line, input="The little dog\n", env=child_environment(mpirun), text=True, capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip
    expected = run_meshrt(*SHORT, "The little dog", "--text", "-q").stdout
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.sample(1)
@pytest.mark.parametrize("machine", ["mesh", "neuron", "arm", "gpu"])
def test_a_dialogue_goes_on_from_all_that_was_said(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], machine: str
) -> None:
    """Each answer is that of a run that reads all tokens so far, of which each is computed once; where a run has no
    room for more, the next one reads all."""
    monkeypatch.setattr("meshrt.commands.chat.LONGER", 2)
    settings: dict[str, Any] = {"gpu": {"tp": 2}, "neuron": {"cores": 2}, "mesh": {"mesh": "6x6"}}.get(machine, {})
    program, arguments = load_program("llama", machine), {"model": "llama-tiny", "layers": 1, "max_new_tokens": 6}
    with say(monkeypatch, comm.rank, b"\nThe little dog\n\nThen\nA cat\n"):
        assert talk(comm, Board.alone(), program, arguments, settings) == 0
    out, err = capsys.readouterr()
    if comm.rank:
        assert (out, err) == ("", "")
        return
    tokenizer, answers = load_tokenizer(find_model("llama-tiny")), out.split("\n")
    assert len(answers) == 5 and answers.pop() == ""
    ids, told_of, computed, room = encode(tokenizer, "The little dog"), [], 0, 0
    for line, answer in zip(("", "", "\nThen", "\nA cat"), answers, strict=True):
        ids += encode(tokenizer, line, special=False)
        if len(ids) + 6 > room:
            room, computed = 2 * (len(ids) + 6), 0
            told_of += ["ms"] if told_of else []
        whole = {"prompt_ids": ",".join(map(str, ids)), "max_new_tokens": 6, "model": "llama-tiny", "layers": 1}
        report = emulate(MPI.COMM_SELF, Board.alone(), program, whole, **settings)
        assert report is not None
        before, ids = decode(tokenizer, ids), ids + report["result"]["token_ids"]
        assert decode(tokenizer, ids)[len(before) :].strip() == answer.strip()
        told_of.append(f"{len(ids) - 1 - computed} tokens computed, {computed} kept, 6 written")
        computed = len(ids) - 1
    lines = err.splitlines()
    assert lines[0] == "(nothing was said yet)"
    assert ["ms" if "virtual time" in line else line[1:-1] for line in lines[1:]] == [*told_of, "ms"]
    assert told_of.count("ms") == 1  # one run had no room for all


@pytest.mark.mpi(ranks=[1])
def test_a_dialogue_goes_on_after_the_end_of_a_text(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end is a token of it; the run that reads all has it as well."""
    program, arguments = load_program("llama", "gpu"), {"model": "llama-tiny", "max_new_tokens": 20}
    with say(monkeypatch, 0, b"ful.\nThe sun\n"):
        assert talk(comm, Board.alone(), program, arguments, {}) == 0
    answers = capsys.readouterr().out.split("\n")
    tokenizer = load_tokenizer(find_model("llama-tiny"))
    results, ids = [], encode(tokenizer, "ful.")
    for line in ("", "\nThe sun"):
        ids += encode(tokenizer, line, special=False)
        report = emulate(comm, Board.alone(), program, arguments | {"prompt_ids": ",".join(map(str, ids))})
        assert report is not None
        ids += report["result"]["token_ids"]
        results.append(report["result"])
    assert results[0]["stopped"] == "end of text"
    assert [each["text"].strip() for each in results] == [each.strip() for each in answers if each]


def test_a_dialogue_forgets_its_oldest_turns() -> None:
    tokenizer = load_tokenizer(find_model("llama-tiny"))
    dialogue = Dialogue(tokenizer, 20)
    assert dialogue.hear("") == "nothing was said yet"
    assert "room for 20: not taken" in str(dialogue.hear("The little dog went " * 9))
    assert dialogue.turns == []
    for line in ("One day", "The little dog", "A cat"):
        ids = dialogue.hear(line)
        assert isinstance(ids, list)
        dialogue.ids += ids
        assert 0 < len(dialogue.ids) <= 20
        dialogue.answered([65, 66, 67])
    assert "One day" not in "".join(dialogue.turns) and dialogue.turns[-1].startswith("A cat")
    while not isinstance(problem := dialogue.hear(""), str):
        dialogue.ids += problem
        dialogue.answered([65, 66, 67])
    assert "no room for more" in problem and len(dialogue.turns) == 1
    assert dialogue.hear("A cat") == encode(tokenizer, "A cat")
    assert dialogue.turns == ["A cat"]
