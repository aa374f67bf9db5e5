"""`meshrt submit` and `meshrt launch --hosts` as a user runs them, with stand-ins for sbatch, qsub and kubectl."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
REST = ("--", "run", "gemm", "--m", "{m}")
KUBERNETES = ("k8s", "--image", "here")


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """`stand_in(name, answer, code=0)` makes a program that keeps its input, arguments and environment.

    It returns the variables to run meshrt with: no other program is on the path then.
    """

    def make(name: str, answer: str, code: int = 0) -> dict[str, str]:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        keep = f'/bin/cat > {tmp_path}/input; echo "$@" > {tmp_path}/argv; /usr/bin/env > {tmp_path}/env'
        path.write_text(f"#!/bin/sh\n{keep}\necho '{answer}' >&{2 if code else 1}\nexit {code}\n")
        path.chmod(0o755)
        return {"PATH": str(path.parent)}

    return make


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("system", "program", "argv", "answer", "said"),
    [
        (("slurm",), "sbatch", "--parsable", "17;big", "job 17, output: meshrt-17.out"),
        (("slurm", "--output", "o/%x-%j"), "sbatch", "--parsable", "17", "job 17, output: o/%x-17"),
        (("slurm", "--sweep", "m=1,2"), "sbatch", "--parsable", "17", "job 17, output: meshrt-17_*.out"),
        (("pbs",), "qsub", "", "17.server", "job 17.server, output: meshrt.o17"),
        (("pbs", "--sweep", "m=1,2"), "qsub", "", "17[].server", "job 17[].server, output: meshrt.o17.*"),
        (
            KUBERNETES, "kubectl", "create -f - -o name", "mpijob.kubeflow.org/meshrt",
            "job mpijob.kubeflow.org/meshrt, output: kubectl logs -f job/meshrt-launcher",
        ),
    ],
)  # fmt: skip
def test_a_job_is_handed_in(
    system: tuple[str, ...], program: str, argv: str, answer: str, said: str, stand_in: Any, run_meshrt: Run,
    tmp_path: Path,
) -> None:  # fmt: skip
    env = stand_in(program, answer)
    code, out, err, _ = run_meshrt("submit", system[0], "-n", "2", *system[1:], *REST, env=env)
    assert (code, out, err) == (0, said + "\n", "")
    assert (tmp_path / "argv").read_text().strip() == argv
    _, shown, _, _ = run_meshrt("submit", system[0], "-n", "2", *system[1:], "--dry-run", *REST, env=env)
    assert (tmp_path / "input").read_text() == shown


def test_a_job_does_not_inherit_what_this_process_is(stand_in: Any, run_meshrt: Run, tmp_path: Path) -> None:
    """sbatch hands the environment on; Open MPI's settings for a rank alone would part the ranks of the job."""
    code, *_ = run_meshrt("submit", "slurm", "-n", "2", *REST, env=stand_in("sbatch", "17") | {"MY_OWN": "1"})
    kept = (tmp_path / "env").read_text().splitlines()
    assert code == 0
    assert "MY_OWN=1" in kept and "OMPI_MCA_btl=self" not in kept


@pytest.mark.parametrize(("system", "program"), [(("slurm",), "sbatch"), (("pbs",), "qsub"), (KUBERNETES, "kubectl")])
def test_no_such_program_or_it_refuses(
    system: tuple[str, ...], program: str, stand_in: Any, run_meshrt: Run, tmp_path: Path
) -> None:
    arguments = ("submit", system[0], "-n", "2", *system[1:], *REST)
    code, out, err, _ = run_meshrt(*arguments, env={"PATH": str(tmp_path)})
    assert (code, out) == (2, "")
    assert err.startswith(f"meshrt: error: no {program} on PATH") and "--dry-run" in err and err.count("\n") == 1
    code, out, err, _ = run_meshrt(*arguments, env=stand_in(program, "invalid partition", code=1))
    assert (code, out) == (2, "")
    assert "ended with code 1 and says: invalid partition" in err and err.count("\n") == 1


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("slurm", "-n", "0"), "ranks: 0 is too few"),
        (("slurm", "-n", "2", "--time", "soon"), "time 'soon'"),
        (("slurm", "-n", "2", "--nodes", "1", "--memory", "lots"), "memory 'lots'"),
        (("slurm", "-n", "2", "--partition", "a b"), "partition 'a b'"),
        (("pbs", "-n", "2", "--nodes", "3"), "3 nodes for 2 ranks"),
        (("pbs", "-n", "2", "--sweep", "k=1,2"), "no {k} in the arguments"),
        (("k8s", "-n", "2"), "--image"),
        (("k8s", "-n", "2", "--image", "x", "--name", "A"), "name 'A'"),
    ],
)
def test_wrong_usage(options: tuple[str, ...], words: str, run_meshrt: Run) -> None:
    code, out, err, _ = run_meshrt("submit", *options, "--dry-run", *REST)
    assert (code, out) == (2, "")
    assert words in err and "Traceback" not in err


@pytest.mark.parametrize("system", [("slurm",), ("pbs",), KUBERNETES], ids=lambda words: words[0])
def test_a_slip_hands_nothing_in(system: tuple[str, ...], run_meshrt: Run) -> None:
    """An option that is not there does not make the others, such as --dry-run, words for the ranks."""
    slip = "--partition" if system is KUBERNETES else "--partitions"
    code, out, err, _ = run_meshrt("submit", *system, "-n", "2", slip, "short", "--dry-run", *REST)
    assert (code, out) == (2, "")
    assert f"No such option '{slip}'" in err
    code, out, err, _ = run_meshrt("submit", *system, "-n", "2", "--dry-run", "--", "rum", "gemm")
    assert (code, out) == (2, "")
    assert err == "meshrt: error: 'rum' is no command of meshrt's: what follows -- is such as run llama-tiny\n"


def test_a_sweep_may_be_over_commands(run_meshrt: Run) -> None:
    options = ("-n", "2", "--sweep", "c=run,plmr", "--dry-run")
    code, out, err, _ = run_meshrt("submit", "slurm", *options, "--", "{c}", "gemm")
    assert (code, err) == (0, "")
    assert "set -- run gemm ;;" in out and "set -- plmr gemm ;;" in out


def test_the_manifest_is_the_same_wherever_it_is_made(run_meshrt: Run) -> None:
    code, out, err, _ = run_meshrt("submit", *KUBERNETES, "-n", "4", "--nodes", "2", "--dry-run", *REST)
    assert (code, err) == (0, "")
    assert json.loads(out)["kind"] == "MPIJob"
    assert sys.prefix not in out and os.getcwd() not in out, "the image has paths of its own"


def test_launch_prints_its_command_for_hosts(run_meshrt: Run) -> None:
    code, out, err, _ = run_meshrt("launch", "-n", "6", "--hosts", "a:2,b:4", "--dry-run", "--", "run", "it's")
    assert (code, err) == (0, "")
    assert " -n 6 " in out and " a:2,b:4 " in out and out.endswith(""" -m meshrt.cli run 'it'"'"'s'\n""")
    code, out, err, _ = run_meshrt("launch", "-n", "7", "--hosts", "a:2,b:4", "--dry-run", "--", "run", "x")
    assert (code, out) == (2, "")
    assert err == "meshrt: error: a:2, b:4 take 6 ranks, not 7: say how many each takes, such as a:4\n"
