"""Host lists and the commands that start ranks on them. ci/two-hosts runs them on two hosts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from meshrt.errors import UsageError
from meshrt.launch import hosts
from meshrt.launch.job import Job
from meshrt.launch.local import Mpirun

HYDRA = Mpirun("/opt/bin/mpirun", "MPICH 5.0.2")
PRTERUN = Mpirun("/opt/bin/mpirun", "Open MPI 5.0.11")
MESHRT = [sys.executable, "-P", "-m", "meshrt.cli", "run", "gemm"]


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("a", {"a": 1}),
        ("a,b:4", {"a": 1, "b": 4}),
        ("node-1.example.org:16,10.0.0.2:8", {"node-1.example.org": 16, "10.0.0.2": 8}),
        ("a,b,a", {"a": 2, "b": 1}),
    ],
)
def test_lists(text: str, slots: dict[str, int]) -> None:
    assert hosts.parse_hosts(text) == slots
    assert list(hosts.parse_hosts(text)) == list(slots), "filled in this order"


def test_files(tmp_path: Path) -> None:
    """A host a line as MPICH, Open MPI and PBS write it."""
    path = tmp_path / "hosts"
    path.write_text("# ours\na:2\n\n b slots=4  # the large one\nc\nc\n")
    assert hosts.parse_hosts(str(path)) == {"a": 2, "b": 4, "c": 2}


@pytest.mark.parametrize(
    "text", ["", "a,,b", "-oProxyCommand=x", "a:0", "a:-1", "a:x", "a;b", "$(id)", "a b", "a:2:3", "/no/such/file"]
)
def test_no_hosts(text: str) -> None:
    with pytest.raises(UsageError, match="give a name"):
        hosts.parse_hosts(text)


def test_a_file_without_hosts(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# none\n")
    with pytest.raises(UsageError, match="no host in it"):
        hosts.parse_hosts(str(tmp_path / "hosts"))


@pytest.mark.parametrize(
    ("mpirun", "options"),
    [
        (HYDRA, ["-hosts", "a:2,b:4"]),
        (PRTERUN, ["--host", "a:2,b:4", "--map-by", "slot", "--bind-to", "none", "-x", "MESHRT_A", "-x", "MESHRT_B"]),
    ],
)
@pytest.mark.parametrize("ranks", [1, 6])
def test_argv(mpirun: Mpirun, options: list[str], ranks: int) -> None:
    job = Job(ranks, ("run", "gemm"))
    argv = hosts.hosts_argv(job, {"a": 2, "b": 4}, mpirun, {"MESHRT_B": "1", "MESHRT_A": "", "HOME": "/"})
    assert argv == ["/opt/bin/mpirun", "-n", str(ranks), *options, *MESHRT]


def test_more_ranks_than_the_hosts_take() -> None:
    with pytest.raises(UsageError, match="a:1, b:4 take 5 ranks, not 6: say how many each takes, such as a:3"):
        hosts.hosts_argv(Job(6, ("run",)), {"a": 1, "b": 4}, HYDRA)
