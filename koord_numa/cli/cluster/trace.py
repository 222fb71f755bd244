"""
Production traces as published CSV files: ``openb_node_list_*.csv`` and ``openb_pod_list_*.csv`` of Alibaba's
cluster-trace-gpu-v2023.

The trace has no NUMA nodes and no CPU policies. Assumptions: machines with 32 CPUs or more have two NUMA nodes, which
share memory and GPUs evenly. All nodes use best-effort alignment. Latency-sensitive pods with whole CPUs are LSR. A GPU
is 1,000 units, so that GPU shares can be summed. ``pod_phase`` and ``scheduled_time`` are results of another scheduler
and ignored.
"""

import csv
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Final

import click

from koord_numa.core.cpu_topology import regular_topology
from koord_numa.core.objects.node import Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, Pod, PodKey, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, CpuOwner, NumaPolicy, QosClass
from koord_numa.core.resources import CPU, MEMORY, MILLI, PODS, ResourceList
from koord_numa.core.value_objects import ValueObject

SUFFIX: Final = ".csv"
GPU: Final = "nvidia.com/gpu"
NAMESPACE: Final = "trace"
_MIB: Final = 1 << 20
_GPU_UNITS: Final = 1000
_TWO_NUMA: Final = 32 * MILLI
_PODS: Final = 250
"""Maximum number of pods per machine. The trace has no limit, and no machine reaches this number."""

_NODE_COLUMNS: Final = frozenset({"sn", "cpu_milli", "memory_mib", "gpu"})
_POD_COLUMNS: Final = frozenset(
    {"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time"}
)

Row = Mapping[str, str]


class TracePod(ValueObject):
    """A pod with its arrival and departure in seconds of the simulation. It stays by default."""

    pod: Pod
    arrives: float = 0.0
    leaves: float = inf


def read_trace_nodes(path: Path) -> list[tuple[Node, NodeResourceTopology]]:
    """Return all machines with their assumed topologies. Raises ``click.ClickException``."""
    return [_machine(path, row) for row in _rows(path, _NODE_COLUMNS)]


def read_trace_pods(path: Path) -> list[TracePod]:
    """Return all pods, sorted by arrival. Raises ``click.ClickException``."""
    found = [_traced(path, row) for row in _rows(path, _POD_COLUMNS)]
    return sorted(found, key=lambda one: (one.arrives, one.pod.key.name))


def _rows(path: Path, columns: frozenset[str]) -> Iterator[Row]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = sorted(columns - set(reader.fieldnames or ()))
            if missing:
                raise click.ClickException(f"{path} is not a trace of this kind: it has no column {', '.join(missing)}")
            yield from reader
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from None


def _number(path: Path, row: Row, column: str) -> int:
    text = row[column] or "0"
    if not text.isascii() or not text.isdigit():
        name = row.get("name") or row.get("sn")
        raise click.ClickException(f"{path}: {name}: {column} is not a whole number: {text!r}")
    return int(text)


def _machine(path: Path, row: Row) -> tuple[Node, NodeResourceTopology]:
    name, cpu, gpus = row["sn"], _number(path, row, "cpu_milli"), _number(path, row, "gpu")
    numas = 2 if cpu >= _TWO_NUMA else 1
    amounts = {CPU: cpu, MEMORY: _number(path, row, "memory_mib") * _MIB, PODS: _PODS}
    if gpus:
        amounts[GPU] = gpus * _GPU_UNITS
    machine = regular_topology(numas, 1, cpu // (2 * MILLI) // numas, 2)
    share: ResourceList = {resource: amount // numas for resource, amount in amounts.items() if resource != PODS}
    zones = tuple(Zone(numa, share, share, share) for numa in machine.numa_ids)
    return (
        Node(name=name, uid=name, allocatable=amounts, numa_policy=NumaPolicy.BEST_EFFORT),
        NodeResourceTopology(node=name, owner=CpuOwner.SCHEDULER, zones=zones, machine=machine),
    )


def _traced(path: Path, row: Row) -> TracePod:
    name, cpu = row["name"], _number(path, row, "cpu_milli")
    if row["gpu_spec"]:
        raise click.ClickException(
            f"{path}: {name} asks for GPU models ({row['gpu_spec']}), which is not supported: take the list without them"
        )
    gpu = _number(path, row, "num_gpu") * _number(path, row, "gpu_milli")
    amounts = {CPU: cpu, MEMORY: _number(path, row, "memory_mib") * _MIB} | ({GPU: gpu} if gpu else {})
    qos = QosClass.BE if row["qos"] == "BE" else QosClass.LS
    if qos is QosClass.LS and cpu and cpu % MILLI == 0:
        qos = QosClass.LSR
    request = PodRequest(containers=(Container("app", ContainerKind.APP, amounts, amounts),), qos=qos)
    arrives = _number(path, row, "creation_time")
    pod = Pod(PodKey(NAMESPACE, name, name), request, scheduler="koord-numa", created=float(arrives))
    return TracePod(pod, arrives, _number(path, row, "deletion_time"))
