"""The commands and environments that start ranks on this machine, and what the doctor says of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshrt.errors import MpiError, UsageError
from meshrt.launch import doctor, local
from meshrt.launch.job import Job
from meshrt.mesh.wires import core

HYDRA = local.Mpirun("/opt/bin/mpirun", "MPICH 5.0.2")
PRTERUN = local.Mpirun("/opt/bin/mpirun", "Open MPI 5.0.11")
MESHRT = [sys.executable, "-P", "-m", "meshrt.cli", "run", "gemm"]


@pytest.mark.parametrize(
    ("mpirun", "ranks", "argv"),
    [
        (HYDRA, 2, ["/opt/bin/mpirun", "-n", "2"]),
        (HYDRA, 64, ["/opt/bin/mpirun", "-n", "64"]),
        (PRTERUN, 2, ["/opt/bin/mpirun", "-n", "2"]),
        (PRTERUN, 64, ["/opt/bin/mpirun", "-n", "64", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]),
    ],
)
def test_argv(mpirun: local.Mpirun, ranks: int, argv: list[str]) -> None:
    job = Job(ranks=ranks, arguments=("run", "gemm"))
    assert local.local_argv(job, mpirun, cores=2) == argv + MESHRT


@pytest.mark.parametrize(
    ("mpirun", "root", "allowed"), [(HYDRA, True, False), (PRTERUN, True, True), (PRTERUN, False, False)]
)
def test_only_open_mpi_asks_for_root(mpirun: local.Mpirun, root: bool, allowed: bool) -> None:
    env = local.local_environment(mpirun, {"PATH": "/bin"}, root=root)
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in env) == allowed
    assert env["PATH"] == "/bin"


def test_a_job_is_no_part_of_the_one_around_it() -> None:
    around = {
        "PMI_RANK": "1",
        "PMIX_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "PRTE_LAUNCHED": "1",
        "MPI_LOCALNRANKS": "2",
    }
    users = {"OMPI_MCA_btl": "tcp,self", "OMPI_ALLOW_RUN_AS_ROOT": "1", "MPIR_CVAR_DEBUG": "1", "HOME": "/h"}
    assert local.without_launcher(around | users) == users


def test_ranks_do_not_inherit_the_transport_of_a_rank_alone() -> None:
    """Open MPI's ranks with btl=self, which this process may have set for itself, reach nobody: MPI_Init fails."""
    alone = {"OMPI_MCA_btl": "self", "OMPI_MCA_pml": "ob1"}
    assert local.local_environment(PRTERUN, alone, root=False) == {"OMPI_MCA_pml": "ob1"}


def test_no_ranks() -> None:
    with pytest.raises(UsageError, match="0 ranks"):
        Job(ranks=0, arguments=())


def _install(directory: Path, version: str) -> Path:
    directory.mkdir()
    mpirun = directory / "mpirun"
    mpirun.write_text(f"#!/bin/sh\necho '{version}'\n")
    mpirun.chmod(0o755)
    return directory


def test_mpirun_beside_python_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = _install(tmp_path / "venv", "HYDRA build details:\n    Version:    5.0.2")
    monkeypatch.setenv("PATH", str(_install(tmp_path / "bin", "mpirun (Open MPI) 4.1.4")))
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    assert local.find_mpirun("MPICH 5.0.2") == local.Mpirun(str(beside / "mpirun"), "MPICH 5.0.2")
    (beside / "mpirun").unlink()
    assert local.find_mpirun("Open MPI 4.1.4").library == "Open MPI 4.1.4"
    with pytest.raises(MpiError, match=r"is of Open MPI 4\.1\.4, but mpi4py loads MPICH 5\.0\.2"):
        local.find_mpirun("MPICH 5.0.2")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MpiError, match=r"no mpirun .* pip install mpi4py mpich"):
        local.find_mpirun("MPICH 5.0.2")


def test_doctor_finds_this_environment_fit() -> None:
    checks = list(doctor.checks())
    assert doctor.exit_code(checks) == 0
    lines = "\n".join(check.text() for check in checks)
    assert re.search(r"^(ok|warn)  +2 ranks +\d+ packets each way in a second, \d+ us each$", lines, re.MULTILINE)
    for name in ("MPI library", "mpirun", "cores", "ranks", "memory", "BLAS threads", "batch system"):
        assert re.search(rf"^(ok|warn)  +{name} ", lines, re.MULTILINE), name


def test_doctor_without_an_mpi_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nowhere/libmpi.so")
    checks = list(doctor.checks())
    last = checks[-1]
    assert (last.level, last.what) == (doctor.Severity.FAIL, "MPI library")
    assert "pip install" in last.mend
    assert doctor.exit_code(checks) == 4
    assert last.text() == f"FAIL  MPI library     {last.found}\n{'':22}-> {last.mend}"
    document = doctor.as_json(checks)
    assert (document["exit_code"], document["checks"][-1]["level"]) == (4, "FAIL")


@pytest.mark.parametrize(
    ("check", "level"),
    [
        (doctor.threads({"OMP_NUM_THREADS": "8"}), doctor.Severity.WARN),
        (doctor.threads({"OMP_NUM_THREADS": "1"}), doctor.Severity.OK),
        (doctor.shared_memory("/nowhere"), doctor.Severity.WARN),
        (doctor.root({}), doctor.Severity.WARN),
        (doctor.package("no-such-package"), doctor.Severity.FAIL),
        (doctor.namesake(), doctor.Severity.OK),
        (
            doctor.compiled_core(core, {"MESHRT_CORE": "numpy"}),
            doctor.Severity.OK if core.built else doctor.Severity.WARN,
        ),
        (doctor.compiled_core(core, {"MESHRT_CORE": "fast"}), doctor.Severity.FAIL),
        (doctor.memory(1), doctor.Severity.OK),
        (doctor.memory(1_000_000), doctor.Severity.WARN),
        (doctor.ranks({}), doctor.Severity.OK),
        (doctor.ranks({"PMI_RANK": "0", "PMI_SIZE": "100000"}), doctor.Severity.WARN),
        (doctor.batch_system({"PATH": ""}), doctor.Severity.OK),
        (doctor.oversubscription(HYDRA, {}), doctor.Severity.OK),
        (
            doctor.oversubscription(PRTERUN, {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}),
            doctor.Severity.OK,
        ),
    ],
)
def test_checks(check: doctor.Check, level: doctor.Severity) -> None:
    assert check.level == level
    assert bool(check.mend) == (level != doctor.Severity.OK)


@pytest.mark.parametrize(
    ("built", "value", "wrong", "mend"),
    [
        (
            SimpleNamespace(SOURCES=5),
            "",
            "the compiled core is not of this checkout",
            "run launch/setup-venv, or install",
        ),
        (None, "compiled", "MESHRT_CORE is 'compiled', but the core was not built here", "install meshrt again"),
        (None, "a: b", "MESHRT_CORE is 'a: b'", "choose numpy or compiled"),
    ],
)
def test_doctor_has_the_way_out_of_each_error_of_the_core(
    built: object, value: str, wrong: str, mend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "bells.c").write_text("int bell;\n")  # the sources of this checkout
    monkeypatch.setattr(core, "PACKAGE", tmp_path)
    monkeypatch.setattr(core, "built", built)
    check = doctor.compiled_core(core, {"MESHRT_CORE": value} if value else {})
    assert check.level == doctor.Severity.FAIL
    assert check.found.startswith(wrong) and check.mend.startswith(mend) and "unset" not in check.mend


def test_the_batch_system_is_found(tmp_path: Path) -> None:
    for name in ("sbatch", "kubectl"):
        _tool(tmp_path / name)
    line = doctor.batch_system({"PATH": str(tmp_path), "PBS_JOBID": "17.front"}).found
    assert line == f"Slurm: {tmp_path}/sbatch, PBS: in job 17.front, Kubernetes: {tmp_path}/kubectl"


def _tool(path: Path) -> None:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
