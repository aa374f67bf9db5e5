"""Bad and hostile input: one line that says what is wrong, exit code 2, no traceback."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lines import run_lines

from meshrt.errors import UsageError
from meshrt.mesh.collectives import treeplan
from meshrt.mesh.mesh import parse_mesh
from meshrt.ranks import files, hostmemory
from meshrt.ranks.failing import causes
from meshrt.reports.report import write_json
from meshrt.whole import LARGEST, whole

Run = Callable[..., Any]


# --------------------------------------------------------------------------------------------------- the command line

NINES, IDS = "9" * 5000, ",".join(["7"] * 50_000)
# Arguments of meshrt, and words that the one line has to have. {d} is a folder to write to.
LINES: dict[str, tuple[list[str], list[str]]] = {
    "mesh without end": (["run", "gemm", "--mesh", f"{NINES}x1"], ["WIDTHxHEIGHT", "left out"]),
    "mesh of other digits": (["run", "gemm", "--mesh", "\u0668x\u0668"], ["\u0668x\u0668", "WIDTHxHEIGHT"]),
    "one file for two": (["run", "gemm", "--trace", "{d}/a", "--html", "{d}/./a"], ["--html and --trace", "both"]),
    "one report for two": (["run", "gemm", "--json", "{d}/a.npz", "--maps", "{d}/a.npz"], ["--json and", "both"]),
    "no name in two": (["run", "gemm", "--json", "a\0", "--html", "a\0"], ["--json", "no name of a file"]),
    "maps without a name": (["run", "xuv", "--m", "4", "--maps=", "--html", "{d}/a"], ["--maps '' names no file"]),
    "maps of GPUs": (["run", "llama-tiny", "--on", "gpu", "--maps="], ["--maps '' names no file"]),
    "maps of Arm cores": (["run", "llama-tiny", "--on", "arm", "--maps="], ["--maps '' names no file"]),
    "a trace and messages": (["run", "gemm", "--trace", "{d}/a", "--goal", "{d}/a"], ["--trace and --goal", "both"]),
    "logits and report": (["run", "llama-tiny", "--logits", "{d}/a", "--json", "{d}/a"], ["--json and --logits"]),
    "logits without a name": (["run", "llama-tiny", "--logits="], ["--logits '' names no file"]),
    "messages without a name": (["run", "gemm", "--chakra="], ["--chakra '' names no file"]),
    "no report": (["html", "{d}/none.json"], ["cannot be read as a report: No such file"]),
    "mesh of three": (["run", "gemm", "--mesh", "2x2x2"], ["2x2x2", "WIDTHxHEIGHT"]),
    "mesh too long": (["run", "gemm", "--mesh", "1000000000x1", "--device", "ideal"], ["1000000000x1", "1000000"]),
    "mesh too large": (["run", "gemm", "--mesh", "1000000x1000000", "--device", "ideal"], ["1000000 x 1000000", "GiB"]),
    "m": (["run", "gemm", "--device", "ideal", "--m", "1000000000"], ["'A'", "953.7 GiB", "this machine has"]),
    "m and k": (["run", "gemm", "--device", "ideal", "--payload", "none", "--m", str(2**53), "--k", str(2**53)],
                ["'A'", "more than 1e20 GiB", "smaller"]),
    "m of tile": (["run", "gemm", "--payload", "none", "--device", "ideal", "--m", str(2**50)], ["'A'", "GiB"]),
    "beyond integers": (["run", "gemm", "--m", "1" + "0" * 30], ["--m", str(LARGEST)]),
    "no end of digits": (["run", "gemm", "--seed", NINES], ["--seed", str(LARGEST)]),
    "other digits": (["run", "gemm", "--m", "\u0661\u0662"], ["--m", "\u0661\u0662"]),
    "underscore": (["run", "gemm", "--core-memory", "1_000"], ["--core-memory", "1_000"]),
    "phases": (["run", "gemv", "--phases", "1000000000"], ["1 to 64", "1000000000"]),
    "phases of a model": (["run", "llama-tiny", "--phases", "1000000000"], ["1 to 64", "1000000000"]),
    "groups": (["run", "gemv", "--groups", NINES], ["--groups", "24,5"]),
    "cache": (["run", "kvcache", "--device", "ideal", "--head-dim", str(10**12)], ["KV cache", "GiB"]),
    "context": (["run", "llama-tiny", "--payload", "none", "--context", str(10**12)], ["KV cache", "GiB"]),
    "wafer": (["run", "gemm", "--defects", "0.1", "--spares", "100000x100000"], ["wafer", "GiB"]),
    "cores": (["run", "xuv", "--cores", "100000000"], ["--cores", "65536"]),
    "prompt tokens": (["run", "llama-tiny", "--prompt-tokens", str(10**9)], ["--prompt-tokens", "10000000"]),
    "bytes for text": (["run", "llama-tiny", "--prompt", "\udcff\udcfe"], ["\\udcff", "UTF-8", "--prompt-ids"]),
    "empty prompt": (["run", "llama-tiny", "--prompt", ""], ["prompt is empty"]),
    "no file of a prompt": (["run", "llama-tiny", "--prompt", "@{d}/none"], ["--prompt @", "none", "No such", "@@"]),
    "a prompt of a folder": (["run", "llama-tiny", "--prompt", "@{d}"], ["--prompt @", "Is a directory"]),
    "a prompt of no file": (["run", "llama-tiny", "--prompt", "@"], ["names no file", "@@"]),
    "no file of prompts": (["run", "lowrank", "--prompts", "{d}/none"], ["--prompts", "none", "No such"]),
    "text and JSON": (["run", "llama-tiny", "--text", "--json", "-"], ["--text", "--json -", "a file"]),
    "text by shape": (["run", "llama-tiny", "--text", "--payload", "none"], ["--text", "--payload none"]),
    "answer without end": (["chat", "llama-tiny", "--max-new-tokens", "512"], ["512", "no room for a line"]),
    "chat with a program": (["chat", "gemm"], ["'gemm'", "neither a packaged model nor a folder"]),
    "long prompt": (["run", "llama-tiny", "--prompt", "ab " * 20_000], ["prompt tokens", "512 positions", "shorten"]),
    "many ids": (["run", "llama-tiny", "--prompt-ids", IDS], ["50000 prompt tokens", "512 positions"]),
    "many wrong ids": (["run", "llama-tiny", "--prompt-ids", IDS + ",x"], ["--prompt-ids", "left out", "1,2,3"]),
    "an id of other digits": (["run", "llama-tiny", "--prompt-ids", "\u0661"], ["--prompt-ids", "\u0661"]),
    "model name": (["run", "llama", "--model", "a" * 5000], ["neither", "left out"]),
    "nobody's home": (["run", "llama", "--model", "~nobody-of-that-name/x"], ["~nobody-of-that-name/x", "neither"]),
    "program name": (["run", "a" * 5000 + ".py"], ["no file"]),
    "program name without an ending": (["run", "a" * 5000], ["no program or model", "meshrt list"]),
    "too many warm-ups": (["run", "serve", "--num-warmups", "2147483648"], ["--num-warmups", "10000"]),
    "lines in a name": (["run", "a\nmeshrt: error: b\x1b[2J"], ["no program or model", "\\x1b"]),
    "json name": (["run", "gemm", "--json", "{d}/" + "a" * 250], ["--json", "240 bytes"]),
    "json nowhere": (["run", "gemm", "--json", ""], ["--json", "''"]),
    "json folder": (["run", "gemm", "--json", "{d}"], ["--json", "is a folder"]),
    "logits nowhere": (["run", "llama-tiny", "--logits", "{d}/no/x"], ["--logits", "there is no folder"]),
    "context and prompt": (
        ["run", "llama-tiny", "--payload", "none", "--context", "9", "--prompt", "a"], ["--context 9", "prompt away"]
    ),
    "the same on NeuronCores": (
        ["run", "llama-tiny", "--on", "neuron", "--payload", "none", "--context", "9", "--prompt-tokens", "3"],
        ["--context 9", "prompt away"],
    ),
    "logits of no numbers": (
        ["run", "llama-tiny", "--payload", "none", "--logits", "{d}/l.npy"], ["--logits", "--payload none"]
    ),
    "logits of no NeuronCore's numbers": (
        ["run", "llama-tiny", "--on", "neuron", "--payload", "none", "--logits", "{d}/l.npy"],
        ["--logits", "--payload none"],
    ),
    "steps of no prefill": (
        ["run", "llama-tiny", "--payload", "none", "--context", "9", "--steps-run", "2"], ["--steps-run", "--context"]
    ),
    "defects": (["run", "gemm", "--defects", "/dev/zero"], ["--defects /dev/zero", "bytes"]),
    "seed of no defects": (["run", "gemm", "--defects-seed", "3"], ["--defects-seed is 3", "--defects RATE"]),
    "seed of a file": (["run", "gemm", "--defects", "nowhere", "--defects-seed", "0"], ["--defects nowhere is a file"]),
    "sizes": (["plmr", "gemm", "--sizes", f"8,16,{NINES}"], ["--sizes"]),
    "steps": (["plmr", "gemm", "--sizes", "2,3,4", "--steps", "N" + "+N" * 20_000], ["arithmetic"]),
    "quotient": (["plmr", "gemm:m={" + "9" * 400 + "/3}", "--sizes", "2,3,4"], ["arithmetic"]),
    "product": (["plmr", "gemm:m={" + "*".join(["N"] * 60) + "}", "--sizes", "2,3,4"], ["arithmetic", str(LARGEST)]),
    "bound": (["plmr", "gemm", "--sizes", "2,3,4", "--expect", "hops=nan"], ["--expect", "nan"]),
    "growth": (["plmr", "gemm", "--sizes", "2,3,4", "--expect", "hops~N^nan"], ["N^nan"]),
    "ranks": (["launch", "-n", "100000000", "--dry-run", "--", "run", "gemm"], ["--ranks", "65536"]),
    "rank file": (["compress", "llama-tiny", "--out", "{d}/new", "--ranks", "/dev/zero"], ["/dev/zero", "bytes"]),
    "text file": (["compress", "llama-tiny", "--out", "{d}/new", "--ratio", "0.5", "--calibration", "/dev/zero"],
                  ["/dev/zero", "bytes"]),
    "prompts nowhere": (
        ["run", "llama-tiny", "--prompts", "{d}/MISSING"], ["--prompts ", "/MISSING cannot be read", "in each line"]
    ),
    "prompts of nothing": (
        ["run", "llama-tiny", "--on", "gpu", "--prompts", "/dev/null"], ["--prompts /dev/null", "no line", "--prompt"]
    ),
    "kernels that are not named": (
        ["reproduce", "neuronmm", "--cache", "none", "--reorder"],
        ["--reorder is of the paper's own kernels", "--kernels"],
    ),
    "kernels nowhere": (
        ["reproduce", "neuronmm", "--cache", "none", "--kernels", "{d}/nowhere"],
        ["--kernels ", "/nowhere is ", "no folder", "dinghongsong/NeuronMM"],
    ),
    "a system that is nearly one": (
        ["reproduce", "waferllm", "3", "--cache", "none", "--system", "lader"],
        ["--system", "'lader'", "Did you mean ladder?"],
    ),
    "messages nowhere": (["bench", "messages", "--to", "{d}/no", "run", "gemm"], ["--to ", "/no/0: there is no"]),
    "kind": (["fuzz", "--only", "nothing"], ["nothing", "loaders"]),
    "seconds that are no number": (["fuzz", "--seconds", "nan"], ["--seconds", "nan is not in the range 0<=x<="]),
    "seconds of a script that are no number": (
        ["csl", "check", ".", "--timeout", "nan"], ["--timeout", "nan is not in the range 0<x<="],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """(exit code, standard output, standard error) of all command lines."""
    folder = tmp_path_factory.mktemp("lines")
    lines = {name: [word.replace("{d}", str(folder)) for word in line] for name, (line, _) in LINES.items()}
    return run_lines(lines, folder)


@pytest.mark.parametrize("name", LINES)
def test_a_bad_command_line_gets_one_line(name: str, outcomes: dict[str, tuple[int, str, str]]) -> None:
    code, out, err = outcomes[name]
    assert (code, out) == (2, ""), err
    assert err.startswith("meshrt: error: ") and err.count("\n") == 1 and len(err) < 1200
    assert all(letter.isprintable() for letter in err.rstrip("\n"))
    for word in LINES[name][1]:
        assert word in err


def test_a_limit_of_the_machine_is_told_first(run_meshrt: Run) -> None:
    """A tile that no core holds is about the machine that is emulated, whatever the host has."""
    finished = run_meshrt("run", "shift", "--tile", "1000000")
    assert finished.code == 3 and "limit is 49152" in finished.stderr and finished.stderr.count("\n") == 1


# ------------------------------------------------------------------------------------------------- memory of the host


def test_what_is_too_large_is_refused_with_what_is_needed_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostmemory, "total", lambda: 8 << 30)
    monkeypatch.setattr(hostmemory.launcher, "ranks_on_node", lambda: 2)
    hostmemory.require("tiles", 4 << 30)
    with pytest.raises(UsageError, match=r"tiles would take 4\.0 GiB .* each of 2 ranks; this machine has 8\.0 GiB"):
        hostmemory.require("tiles", (4 << 30) + 1)


def test_what_a_process_may_have_is_all_that_it_is_said_to_have() -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))  # not as here

    code = "from meshrt.ranks.hostmemory import bound, total; import resource; bound(); print(total());" + (
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], preexec_fn=limited, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(3 << 30)] * 2, done.stderr


def test_memory_that_runs_out_is_told(run_meshrt: Run, tmp_path: Path) -> None:
    """The last resort: nothing asked beforehand, and the system refuses."""
    (tmp_path / "greedy.py").write_text("import numpy as np\ndef run(block):\n    return {'x': np.zeros(2**50)[0]}\n")
    finished = run_meshrt("run", str(tmp_path / "greedy.py"))
    assert finished.code == 2 and finished.stderr.count("\n") == 1
    assert "too little memory" in finished.stderr and "Unable to allocate 8.00 PiB" in finished.stderr


@pytest.mark.parametrize("nbytes", [0, 1 << 30, 1 << 62, 10**40])
def test_any_size_can_be_worded(nbytes: int) -> None:
    assert hostmemory.gib(nbytes).endswith("GiB")


# ---------------------------------------------------------------------------------------------- numbers and messages


@pytest.mark.parametrize(
    "text", ["", " ", "x", "1.0", "1_0", "\u0663", "\u00b2", "0x1", "1e3", "--1", "9" * 17, "9" * 5000]
)
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match="no whole number"):
        whole(text)


def test_whole_numbers_up_to_the_largest() -> None:
    assert [whole(str(LARGEST)), whole(f"-{LARGEST}"), whole(" +4 "), whole("007")] == [LARGEST, -LARGEST, 4, 7]
    with pytest.raises(ValueError, match=str(LARGEST)):
        whole(str(LARGEST + 1))


@pytest.mark.parametrize("text", ["", "x", "8", "8x", "x8", "8x8x8", "0x1", "1x0", "-1x1", "1000001x1", "\u0668x8"])
def test_what_is_no_mesh(text: str) -> None:
    with pytest.raises(UsageError, match="WIDTHxHEIGHT"):
        parse_mesh(text)


@pytest.mark.parametrize("phases", [0, 65, 10**9])
def test_trees_of_too_many_phases(phases: int) -> None:
    with pytest.raises(UsageError, match="1 to 64"):
        treeplan.ktree(8, phases)
    assert treeplan.ktree(8, 64).root in range(8)


def test_messages_are_one_printable_line_with_both_ends() -> None:
    text = causes.describe(UsageError("begin\n\x1b[2J\ud800" + "x" * 100_000 + "end")).text
    assert text.startswith("begin \\x1b[2J\\ud800x") and text.endswith("xend") and len(text) < 1100
    assert "characters left out" in text and text.isprintable()


# ----------------------------------------------------------------------------------------------- files that are written


def test_a_link_goes_on_to_lead_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    files.check_target("--json", str(tmp_path / "link"))
    write_json({"a": 1}, str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink() and json.loads((tmp_path / "real").read_text()) == {"a": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_what_is_no_name_of_a_file(path: str) -> None:
    with pytest.raises(UsageError, match=r"--json '.*' is no name of a file: "):
        files.check_target("--json", path)


def test_standard_output_is_no_file_of_its_sign() -> None:
    with pytest.raises(UsageError, match="--html - would be a file of that name: name another, or /dev/stdout"):
        files.check_target("--html", "-")


def test_what_is_no_file_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    """A pipe stands for the devices: replacing /dev/null would be felt by the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.check_target("--json", str(pipe))
        write_json({"a": 1}, str(pipe))
        assert json.loads(os.read(reader, 1000)) == {"a": 1}
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and list(tmp_path.iterdir()) == [pipe]


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    def full(stream: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match=r"--json .*/x cannot be written: No space left"):
        files.write_file("--json", str(tmp_path / "x"), full)
    assert not list(tmp_path.iterdir())
