# noqa: INP001  (a script that make and workflows run; tests load it by its path)
"""
Check a scheduler in a real or simulated cluster through kubectl: ``make cluster-check``.

Without options, the pods of ``examples/kind`` must get CPUs or wait with numbers. ``--load N`` creates and deletes N pods, for
example during an upgrade: each must be placed, and no CPU may be held twice. ``--applied NODE`` creates a pod on a node whose agent
applies CPUs, and compares its cgroup with the decision. ``--sysfs FOLDER`` writes a sysfs that shows the CPUs of this machine as two NUMA
nodes, for an agent in a container.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.sandbox.machines.description import read_descriptions
from koord_numa.sandbox.machines.node_services import write_sysfs

PODS: Final = Path(__file__).parents[2] / "examples" / "kind" / "pods.yaml"
STATUS: Final = "scheduling.koordinator.sh/resource-status"
PATIENCE: Final = 180.0
"""Seconds until a pod must have a result. Images of a new scheduler may have to be pulled."""

AT_ONCE: Final = 4
"""Pods of ``--load`` that exist at once: half of the CPUs of the workers of ``examples/kind``."""

Json = dict[str, Any]


def kubectl(*arguments: str, text: str = "") -> str:
    """Run kubectl. Raises ``SystemExit`` with its error."""
    command = ["kubectl", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)  # noqa: S603  (our own commands)
    if done.returncode:
        raise SystemExit(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def pods(namespace: str) -> dict[str, Json]:
    """Return the pods of a namespace by name."""
    listed = json.loads(kubectl("get", "pods", "--namespace", namespace, "--output", "json"))["items"]
    return {pod["metadata"]["name"]: pod for pod in listed}


def cpus_of(pod: Json) -> CpuSet:
    """Return the CPUs that the scheduler decided for a pod."""
    annotation = (pod["metadata"].get("annotations") or {}).get(STATUS, "{}")
    return CpuSet.parse(json.loads(annotation).get("cpuset", ""))


def waits_with(pod: Json) -> str:
    """Return the message of a pod that is not placed, or ""."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((it.get("message", "") for it in conditions if it["type"] == "PodScheduled"), "")


def until(namespace: str, done: Callable[[dict[str, Json]], bool]) -> dict[str, Json]:
    """Poll the pods until the condition holds. Raises ``SystemExit`` with what the pods are at the end."""
    end = time.monotonic() + PATIENCE
    while not done(found := pods(namespace)):
        if time.monotonic() > end:
            lines = [
                f"{name}: {pod['spec'].get('nodeName') or waits_with(pod) or 'no result'}"
                for name, pod in found.items()
            ]
            raise SystemExit("\n".join(("not as expected:", *lines)))
        time.sleep(0.2)
    return found


def held_twice(found: Iterable[Json]) -> list[str]:
    """Return a sentence for each pod with CPUs that another pod of its node has."""
    held: dict[str, CpuSet] = {}
    wrong = []
    for pod in found:
        node, cpus = pod["spec"].get("nodeName", ""), cpus_of(pod)
        if node and cpus & held.get(node, CpuSet()):
            wrong.append(f"{pod['metadata']['name']}: CPUs {cpus} of {node} are held twice")
        held[node] = held.get(node, CpuSet()) | cpus
    return wrong


def check_examples(namespace: str) -> list[str]:
    """Apply the pods of ``examples/kind``, and return what is wrong with the results."""
    kubectl("apply", "--namespace", namespace, "--filename", str(PODS))
    placed = ("pinned", "whole-cores")

    def settled(found: dict[str, Json]) -> bool:
        return all(found[name]["spec"].get("nodeName") for name in placed) and bool(waits_with(found["too-wide"]))

    found = until(namespace, settled)
    wrong = [f"{name} has no CPUs" for name in placed if len(cpus_of(found[name])) != 2]
    if "nodes are available" not in (text := waits_with(found["too-wide"])):
        wrong.append(f"too-wide waits without numbers: {text}")
    return wrong + held_twice(found.values())


def load_pod(number: int) -> Json:
    """Return a pod with a CPU of its own."""
    amounts = {"cpu": "1", "memory": "32Mi"}
    container = {
        "name": "main",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": amounts, "limits": amounts},
    }
    metadata = {
        "name": f"load-{number}",
        "labels": {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"},
    }
    spec = {"schedulerName": "koord-numa", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def check_load(namespace: str, count: int) -> list[str]:
    """Create and delete pods, a few at a time, and return what is wrong. Every pod must be placed."""
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(count, first + AT_ONCE))
        listed = {"apiVersion": "v1", "kind": "List", "items": [load_pod(number) for number in numbers]}
        names = [f"load-{number}" for number in numbers]
        kubectl("create", "--namespace", namespace, "--filename", "-", text=json.dumps(listed))
        found = until(namespace, lambda found, names=names: all(found[name]["spec"].get("nodeName") for name in names))
        if wrong := held_twice(found.values()):
            return wrong
        kubectl("delete", "pods", "--namespace", namespace, "--wait=true", *names)
    return []


def check_applied(namespace: str, node: str) -> list[str]:
    """Create a pod with two CPUs on a node, and return what is wrong when its cgroup does not get the decided CPUs."""
    pod = load_pod(0)
    pod["metadata"]["name"] = name = "applied"
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    pod["spec"]["containers"][0] |= {"image": "docker.io/library/busybox:1.37", "command": ["sleep", "infinity"]}
    kubectl("create", "--namespace", namespace, "--filename", "-", text=json.dumps(pod))
    decided = cpus_of(until(namespace, lambda found: found[name]["status"].get("phase") == "Running")[name])
    end, runs_on = time.monotonic() + PATIENCE, ""
    while time.monotonic() < end:
        runs_on = kubectl(
            "exec", "--namespace", namespace, name, "--", "cat", "/sys/fs/cgroup/cpuset.cpus.effective"
        ).strip()
        if CpuSet.parse(runs_on) == decided:
            return []
        time.sleep(1)
    return [f"{name} runs on CPUs {runs_on}, decided are {decided}"]


def write_two_numa_nodes(folder: Path) -> None:
    """Write a sysfs with the CPUs of this machine on two sockets with one NUMA node each."""
    count = os.cpu_count() or 1
    threads = 2 if count % 4 == 0 else 1
    entry = {
        "name": "overlay",
        "sockets": 2,
        "numa": 1,
        "cores": max(count // 2 // threads, 1),
        "threads": threads,
        "memory": "1Gi",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (described,) = read_descriptions({"machines": [entry]}, folder)
    write_sysfs(folder, described.hardware)


def main(arguments: list[str]) -> None:
    """Run one check. Ends with a line for each finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--load", type=int, metavar="N", help="create and delete so many pods")
    parser.add_argument("--applied", metavar="NODE", help="compare the cgroup of a pod on the node with its CPUs")
    parser.add_argument("--sysfs", type=Path, metavar="FOLDER", help="only write a sysfs of two NUMA nodes")
    chosen = parser.parse_args(arguments)
    if chosen.sysfs:
        write_two_numa_nodes(chosen.sysfs)
        return
    if chosen.applied:
        wrong = check_applied(chosen.namespace, chosen.applied)
    else:
        wrong = check_load(chosen.namespace, chosen.load) if chosen.load else check_examples(chosen.namespace)
    if wrong:
        raise SystemExit("\n".join(wrong))
    print("as expected")  # noqa: T201  (says what was found)


if __name__ == "__main__":
    main(sys.argv[1:])
