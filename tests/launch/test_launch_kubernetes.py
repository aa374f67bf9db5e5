"""The MPIJob, checked against what the MPI Operator publishes.

MPIJOB and published() say what kubeflow/mpi-operator has in pkg/apis/kubeflow/v2beta1/types.go and
pkg/apis/kubeflow/validation/validation.go (commit caa3c47).
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from batch_scripts import HOSTILE
from hypothesis import given
from hypothesis import strategies as st

from meshrt.errors import UsageError
from meshrt.launch import kubernetes
from meshrt.launch.batch import BatchJob

IMAGE = "registry.example.org/meshrt:1"
DOCKERFILE = (Path(__file__).parents[2] / "launch" / "Dockerfile").read_text()
# The fields that there are, of each part: what has another name is refused or dropped.
MPIJOB = {
    "spec": {
        "slotsPerWorker", "runLauncherAsWorker", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath",
        "launcherCreationPolicy", "mpiImplementation",
    },
    "runPolicy": {
        "cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "schedulingPolicy",
        "suspend", "managedBy",
    },
    "replica": {"replicas", "template", "restartPolicy"},
}  # fmt: skip


def batch(**options: Any) -> BatchJob:
    return BatchJob(**{"ranks": 8, "runs": (("run", "gemm"),)} | options)


def made(**options: Any) -> Any:
    return json.loads(kubernetes.manifest(batch(**options), IMAGE))


def container(job: Any, replica: str) -> Any:
    (only,) = job["spec"]["mpiReplicaSpecs"][replica]["template"]["spec"]["containers"]
    return only


def published(job: Any) -> None:
    """What the operator checks before it takes a job, and that every field is one of its own."""
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = job["spec"]
    replicas = spec["mpiReplicaSpecs"]
    assert set(job) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(spec) <= MPIJOB["spec"] and set(spec["runPolicy"]) <= MPIJOB["runPolicy"]
    assert set(replicas) == {"Launcher", "Worker"}
    host = f"{job['metadata']['name']}-worker-{replicas['Worker']['replicas'] - 1}"
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", host) and len(host) <= 63
    assert spec["slotsPerWorker"] >= 0 and spec["sshAuthMountPath"]
    assert spec["mpiImplementation"] in {"OpenMPI", "Intel", "MPICH"}
    assert spec["launcherCreationPolicy"] in {"AtStartup", "WaitForWorkersReady"}
    assert spec["runPolicy"]["cleanPodPolicy"] in {"None", "Running", "All"}
    assert replicas["Launcher"]["replicas"] == 1 and replicas["Worker"]["replicas"] >= 1
    for replica in replicas.values():
        assert set(replica) <= MPIJOB["replica"]
        assert replica["restartPolicy"] in {"Never", "OnFailure"}
        (only,) = replica["template"]["spec"]["containers"]
        assert only["image"] and only["name"]
        volumes = {volume["name"] for volume in replica["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in only.get("volumeMounts", [])} == volumes


@pytest.mark.parametrize(
    ("options", "workers", "slots", "cores"),
    [
        ({}, 1, 8, "8"),
        ({"nodes": 4}, 4, 2, "2"),
        ({"nodes": 3}, 3, 3, "3"),
        ({"ranks_per_node": 5}, 2, 5, "5"),
        ({"nodes": 2, "cores_per_node": 1}, 2, 4, "1"),
    ],
)
def test_a_job(options: dict[str, int], workers: int, slots: int, cores: str) -> None:
    job = made(**options)
    published(job)
    spec = job["spec"]
    assert (spec["mpiReplicaSpecs"]["Worker"]["replicas"], spec["slotsPerWorker"]) == (workers, slots)
    assert (workers - 1) * slots < 8 <= workers * slots, "hosts are filled one after the other; none stays empty"
    launcher = container(job, "Launcher")
    assert launcher["command"] == ["mpirun", "-n", "8", "meshrt", "run", "gemm"]
    assert {"name": "OMP_NUM_THREADS", "value": "1"} in launcher["env"]
    assert container(job, "Worker")["resources"]["limits"] == {"cpu": cores}
    assert launcher["image"] == container(job, "Worker")["image"] == IMAGE


def test_limits() -> None:
    job = made(nodes=2, memory=4096, time=5400, name="big")
    published(job)
    assert job["metadata"]["name"] == "big"
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] == 5400
    assert container(job, "Worker")["resources"]["limits"] == {"cpu": "4", "memory": "4096Mi"}


def test_a_sweep_is_a_list_of_jobs() -> None:
    whole = made(runs=tuple(("run", "gemm", "--m", str(m)) for m in range(11)))
    assert (whole["apiVersion"], whole["kind"], len(whole["items"])) == ("v1", "List", 11)
    for at, job in enumerate(whole["items"]):
        published(job)
        assert job["metadata"]["name"] == f"meshrt-{at}"
        assert container(job, "Launcher")["command"][-1] == str(at)


def expanded(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of a word of a command: $(NAME) is the variable, if there is one, and $$ is $.

    As its API reference has it, Container v1 core, `command`.
    """

    def replaced(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, text)


@given(st.lists(st.text("$()aA; '\"\\\n", max_size=8)))
def test_arguments_arrive_as_they_are(arguments: list[str]) -> None:
    command = container(made(runs=((*HOSTILE, *arguments),)), "Launcher")["command"]
    variables = {"a": "wrong", "A": "wrong", "touch hurt": "wrong", "": "wrong"}
    assert [expanded(word, variables) for word in command[4:]] == [*HOSTILE, *arguments]


@pytest.mark.parametrize("name", ["Big", "a_b", "a.b", "a-", "a" * 60])
def test_a_name_that_is_no_host_name(name: str) -> None:
    with pytest.raises(UsageError, match=r"small letters, digits and '-'"):
        made(name=name)


def test_the_longest_name_is_one_of_63_characters() -> None:
    """Of 8 workers the last is NAME-worker-7, nine characters more, and so has NAME-launcher."""
    published(made(name="a" * 54, nodes=8))
    with pytest.raises(UsageError, match="63"):
        made(name="a" * 55, nodes=8)
    with pytest.raises(UsageError, match="63"):
        made(name="a" * 53, runs=(("a",), ("b",)))  # -0


@pytest.mark.parametrize("image", ["", "a b", "$(x)", "a\nb"])
def test_no_image(image: str) -> None:
    with pytest.raises(UsageError, match="image"):
        kubernetes.manifest(batch(), image)


def test_the_image_has_what_the_job_takes_for_granted() -> None:
    job = made()
    worker = container(job, "Worker")
    assert f"'Port {worker['readinessProbe']['tcpSocket']['port']}'" in DOCKERFILE
    assert f"useradd --create-home --uid {worker['securityContext']['runAsUser']} mpiuser" in DOCKERFILE
    assert f"'HostKey {job['spec']['sshAuthMountPath']}/id_rsa'" in DOCKERFILE
    assert f"> {worker['command'][-1]}" in DOCKERFILE
    assert "[mpich]" in DOCKERFILE and job["spec"]["mpiImplementation"] == "MPICH"


def test_the_image_takes_what_the_checkout_has() -> None:
    """No image is built here: of what a builder would stumble over, that which can be told without one."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    steps = re.findall(r"^([A-Z]+) (.*)$", re.sub(r"\\\n\s*", "", DOCKERFILE), re.M)
    assert [name for name, _ in steps] == ["FROM", "RUN", "RUN", "COPY", "RUN", "USER", "WORKDIR"]
    for _, words in (step for step in steps if step[0] == "COPY"):
        *sources, target = words.split()
        assert all((root / source).exists() for source in sources)
        assert f"pip install --no-cache-dir '{target}[mpich]' && rm -rf {target}" in dict(steps[4:5])["RUN"]
    assert "mpich" in project["optional-dependencies"]
    least, image = project["requires-python"], re.match(r"python:3\.(\d+)-", dict(steps)["FROM"])
    assert image and int(image[1]) >= int(least.removeprefix(">=3."))
    page = (root / "docs" / "launch.md").read_text()
    assert "docker build -f launch/Dockerfile -t" in DOCKERFILE and "docker build -f launch/Dockerfile -t" in page
