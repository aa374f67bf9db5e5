"""A name that there is not: the message has the one that was meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mpi_jobs import Finished

MEANT = {
    "rnu gemm": "run",
    "run gemmm": "gemm",
    "run lama-tiny": "llama-tiny",
    "run Qwen/Qwen3-4B": "run llama --model Qwen/Qwen3-4B",
    "run llama --model lama-tiny": "llama-tiny",
    "chat lama-tiny": "llama-tiny",
    "run gemm --mehs 4x4": "--mesh",
    "run gemm --device wse22": "wse2",
    "run gemm --algorithm meshgem": "meshgemm",
    "run llama --on gpuu": "gpu",
    "run llama --on gpu --device a10": "a100",
    "run llama --on neuron --device trn": "trn1",
    "run llama --on arm --device fone": "phone",
    "bench gem": "gemm",
    "llama-tiny --prompt-ids 1": "`meshrt run llama-tiny`",
    "gemm": "`meshrt run gemm`",
    "my_own.py": "`meshrt run my_own.py`",
    "bench serve --model llama-tiny --only bse": "base",
    "reproduce waferlm": "waferllm",
    "devices trn": "trn1",
    "devices a10": "a100",
    "csl rnu": "run",
    "submit slrm": "slurm",
    "sweep gemmm --set m=1": "gemm",
    "sweep gemm --set algoritm=cannon": "algorithm",
    "plmr gemmm --sizes 4,6,8": "gemm",
    "fit gemmm": "gemm",
    "explain stge": "stage",
    "validate --only MeshGEM": "MeshGEMM",
    "tune llama3-8 --prompt-tokens 8 --new-tokens 8": "llama3-8b",
}


@pytest.mark.parametrize("line", MEANT)
def test_what_was_meant_is_named(line: str, run_meshrt: Callable[..., Finished]) -> None:
    code, out, err, _ = run_meshrt(*line.split())
    assert (code, out) == (2, "")
    assert MEANT[line].casefold() in err.casefold().partition("did you mean")[2], err


@pytest.mark.parametrize("group", ["", "bench", "csl", "nki", "reproduce", "submit"])
def test_where_none_is_meant_all_are_named(group: str, run_meshrt: Callable[..., Finished]) -> None:
    code, out, err, _ = run_meshrt(*group.split(), "zzzz")
    assert (code, out) == (2, "")
    assert err.startswith("meshrt: error: no command 'zzzz': there are ") and err.count("\n") == 1 and "[" not in err


def test_where_options_stand(run_meshrt: Callable[..., Finished]) -> None:
    code, out, err, _ = run_meshrt("run", "--mesh", "4x4", "gemm")
    assert (code, out) == (2, "") and "--mesh stands behind the program: meshrt run PROGRAM --mesh ..." in err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("gemm --m 128", "--m is an option of what runs: --set m=128"),
        ("gemm --transpose-b --set m=1", "--set transpose-b=A,B,..."),
        ("llama --on gpu --tp=2,4", "--set tp=2,4"),
    ],
)
def test_what_a_sweep_varies(line: str, says: str, run_meshrt: Callable[..., Finished]) -> None:
    code, out, err, _ = run_meshrt("sweep", *line.split())
    assert (code, out) == (2, "") and says in err


def test_an_option_that_run_has_itself(tmp_path: Path, run_meshrt: Callable[..., Finished]) -> None:
    def run(name: str, *options: str) -> Finished:
        program = tmp_path / f"own_{name}.py"
        program.write_text(f"MESH = (2, 2)\ndef run(block, *, {name}: int = 3):\n    return {{'n': {name}}}\n")
        return run_meshrt("run", str(program), *options)

    for name in ("quiet", "form", "json", "mesh", "html", "on"):
        code, _, err, _ = run(name)
        assert code == 2 and f"option {name}: `meshrt run` has one of that name; choose another" in err
        assert err.count("\n") == 1
    for name in ("verbose", "size", "text"):  # what `run` can do without
        code, out, err, _ = run(name, f"--{name}", "7", "-v")
        assert (code, err) == (0, "") and "n: 7" in out


def test_a_file_without_its_ending(tmp_path: Path, run_meshrt: Callable[..., Finished]) -> None:
    (tmp_path / "rowsum.py").write_text("")
    code, _, err, _ = run_meshrt("run", str(tmp_path / "rowsum"))
    assert code == 2 and f"did you mean the file {tmp_path}/rowsum.py?" in err
