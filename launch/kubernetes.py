"""Kubernetes: an MPIJob of the Kubeflow MPI Operator, and handing it in.

The fields are those of kubeflow.org/v2beta1, pkg/apis/kubeflow/v2beta1/types.go of the operator. The image is one that
launch/Dockerfile makes: it has MPICH, an sshd that needs no root, and meshrt on its path.
"""

from __future__ import annotations

import json
import re
from typing import Any

from meshrt.errors import UsageError
from meshrt.launch.batch import BatchJob
from meshrt.launch.submit import Submitted, hand_in
from meshrt.ranks import host

USER = 1000  # mpiuser of the image
PORT = 2222  # its sshd's
HOSTS = "/etc/mpi/hostfile"  # the operator's
LONGEST_NAME = 63  # of a host in DNS


def manifest(batch: BatchJob, image: str, volume: str | None = None) -> str:
    """JSON, which is YAML, too: an MPIJob, or a list of one for each run. Raises UsageError.

    `volume` is CLAIM:/PATH, a persistent volume claim and where all ranks have it.
    """
    if not re.fullmatch(r"[\w.:/@-]+", image, re.ASCII):
        raise UsageError(f"image {image!r}: give a name such as registry.example.org/meshrt:1")
    if volume is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*:/[\w./-]+", volume, re.ASCII):
        raise UsageError(f"volume {volume!r}: give a claim and a path such as states:/states")
    if batch.restarts and volume is None:
        raise UsageError(
            "--restarts: a pod's files are gone with it: give --volume CLAIM:/PATH, and --checkpoint there"
        )
    runs = zip(_names(batch), batch.resumable, strict=True)
    jobs = [_mpi_job(batch, image, volume, name, run) for name, run in runs]
    whole = jobs[0] if len(jobs) == 1 else {"apiVersion": "v1", "kind": "List", "items": jobs}
    return json.dumps(whole, indent=2) + "\n"


def _names(batch: BatchJob) -> list[str]:
    """A job's name for each run. The operator makes host names of them."""
    several = len(batch.runs) > 1
    names = [f"{batch.name}-{at}" if several else batch.name for at in range(len(batch.runs))]
    longest = max(f"{names[-1]}-worker-{_workers(batch) - 1}", f"{names[-1]}-launcher", key=len)
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", batch.name) or len(longest) > LONGEST_NAME:
        raise UsageError(
            f"name {batch.name!r}: Kubernetes wants small letters, digits and '-', and {longest!r}, which is a host's "
            f"name, may have {LONGEST_NAME} characters"
        )
    return names


def _workers(batch: BatchJob) -> int:
    return len(batch.on_nodes or (1,))


def _mpi_job(batch: BatchJob, image: str, volume: str | None, name: str, run: tuple[str, ...]) -> dict[str, Any]:
    slots = (batch.on_nodes or (batch.ranks,))[0]
    # Without retries: a run that failed would fail again. One that was lost is started again by the launcher.
    policy = {"cleanPodPolicy": "Running", "backoffLimit": 0}
    if batch.time:
        policy["activeDeadlineSeconds"] = batch.time
    # mpirun and its ranks take environment and arguments from the launcher.
    start = ["mpirun", "-n", str(batch.ranks), "meshrt"]
    if batch.restarts:
        start = ["meshrt", "launch", "-n", str(batch.ranks), "--restarts", str(batch.restarts), "--hosts", HOSTS, "--"]
    launcher = {
        "command": [*start, *map(_literal, run)],
        "env": [{"name": key, "value": value} for key, value in host.ONE_THREAD.items()],
    }
    needs = {"cpu": str(batch.cores_per_node or slots)}
    if batch.memory:
        needs["memory"] = f"{batch.memory}Mi"
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    worker = {
        "command": ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"],
        "resources": {"requests": needs, "limits": needs},
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 2},
        # The ranks of a pod send their messages through it, and 64 MB, a pod's own, are soon full.
        "volumeMounts": mounts,
    }
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if volume is not None:
        claim, path = volume.split(":")
        volumes.append({"name": "state", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": "state", "mountPath": path})
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {
            "mpiImplementation": "MPICH",
            "slotsPerWorker": slots,
            "sshAuthMountPath": "/home/mpiuser/.ssh",
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": policy,
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, {"name": "launcher", "image": image, **launcher}, []),
                "Worker": _replicas(_workers(batch), {"name": "worker", "image": image, **worker}, volumes),
            },
        },
    }


def _replicas(count: int, container: dict[str, Any], volumes: list[Any]) -> dict[str, Any]:
    container["securityContext"] = {"runAsUser": USER}
    pod = {"containers": [container], "volumes": volumes}
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}


def _literal(argument: str) -> str:
    """Kubernetes puts variables in the place of $(NAME), and $ in that of $$."""
    return argument.replace("$", "$$")


def submit(batch: BatchJob, text: str) -> Submitted:
    """Hand the manifest in. Raises UsageError if there is no kubectl, or it refuses."""
    jobs = hand_in(["kubectl", "create", "-f", "-", "-o", "name"], text).split()
    logs = "; ".join(f"kubectl logs -f job/{name}-launcher" for name in _names(batch)[:3])
    return Submitted(", ".join(jobs), logs + (" ..." if len(batch.runs) > 3 else ""))
