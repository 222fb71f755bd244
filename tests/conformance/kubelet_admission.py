"""
The kubelet's answers to whole sequences of pods: what each case says, in the core's types.

``load`` reads one sequence; the tests replay it once with the exact model, and once as a scheduler sees it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from koord_numa.core.amounts import Amounts
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.answers import ContainerGrant, Grant
from koord_numa.core.kubelet.machine import Device, DevicePool, KubeletNode, bits_of
from koord_numa.core.machine import machine_of
from koord_numa.core.node import KubeletConfig
from koord_numa.core.quantity import amount, supply
from koord_numa.core.request import Container, PodRequest
from koord_numa.core.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from tests.conformance.vectors import Case

PAGE_BYTES = {"2Mi": 2 << 20, "1Gi": 1 << 30}


@dataclass(frozen=True)
class Step:
    """One step: a pod arrives (``request``), or the one with this uid goes."""

    uid: str
    request: PodRequest | None
    out: Mapping[str, Any]
    nrt: Mapping[str, Any] | None


@dataclass(frozen=True)
class Sequence:
    """A node and what happens on it."""

    id: str
    node: KubeletNode
    steps: tuple[Step, ...]
    nrt_after: Mapping[str, Any]
    leaks: bool


def load(case: Case) -> Sequence:
    """Read one line of the file."""
    return Sequence(
        id=case["id"],
        node=_node(case["node"], case.get("reserved_set", "")),
        steps=tuple(_step(step) for step in case["steps"]),
        nrt_after=case["nrt_after"],
        leaks=bool(case.get("leak")),
    )


def _step(step: Mapping[str, Any]) -> Step:
    if step["op"] == "remove":
        return Step(step["uid"], None, {}, step.get("nrt"))
    pod = step["pod"]
    return Step(pod["metadata"]["uid"], load_pod(pod), step["out"], step.get("nrt"))


def load_pod(pod: Mapping[str, Any]) -> PodRequest:
    """The pod of a step."""
    return PodRequest(containers=tuple(_containers(pod["spec"])), namespace=pod["metadata"]["namespace"])


def _containers(spec: Mapping[str, Any]) -> Iterator[Container]:
    for one in spec.get("initContainers", ()):
        yield _container(one, ContainerKind.SIDECAR if one.get("restartPolicy") == "Always" else ContainerKind.INIT)
    for one in spec["containers"]:
        yield _container(one, ContainerKind.APP)


def _container(one: Mapping[str, Any], kind: ContainerKind) -> Container:
    resources = one.get("resources", {})
    return Container(one["name"], kind, _amounts(resources.get("requests")), _amounts(resources.get("limits")))


def _amounts(texts: Mapping[str, str] | None) -> dict[str, int]:
    return {name: amount(name, text) for name, text in (texts or {}).items()}


def _node(node: Mapping[str, Any], reserved: str) -> KubeletNode:
    options = {name: value == "true" for name, value in node["cpu_options"].items()}
    return KubeletNode(
        machine=machine_of(node["cpus"], numa_ids=node["numa_nodes"], distances=node["distances"]),
        config=KubeletConfig(
            topology_policy=KubeletPolicy(node["tm_policy"]),
            topology_scope=KubeletScope(node["tm_scope"]),
            topology_options={name: value == "true" for name, value in node["tm_options"].items()},
            cpu_policy=node["cpu_manager"],
            cpu_options=options,
            memory_policy=node["memory_manager"],
            reserved_cpus=CpuSet.parse(reserved),
        ),
        allocatable={name: supply(name, text) for name, text in node["allocatable"].items()},
        memory=dict(_memory(node)),
        devices={name: DevicePool(tuple(_devices(rows))) for name, rows in sorted(node["devices"].items())},
    )


def _memory(node: Mapping[str, Any]) -> Iterator[tuple[int, Amounts]]:
    for place, numa in enumerate(node["numa_nodes"]):
        pages = {f"hugepages-{size}": counts[place] * PAGE_BYTES[size] for size, counts in node["hugepages"].items()}
        rest = node["memory"][place] - sum(pages.values()) - node["reserved_memory"][place]
        yield numa, {"memory": rest, **pages}


def _devices(rows: list[list[Any]]) -> Iterator[Device]:
    """The recorded plugin prefers the lowest number."""
    for row in sorted(rows, key=lambda row: int("".join(letter for letter in row[0] if letter.isdigit()))):
        near = row[1] if isinstance(row[1], list) else [] if row[1] is None else [row[1]]
        yield Device(id=row[0], near=sum(1 << numa for numa in near), healthy=len(row) < 3)


def written(grant: Grant) -> dict[str, Any]:
    """A grant as the file writes it."""
    return {"admit": True, "qos": str(grant.qos), "containers": {one.name: _written(one) for one in grant.containers}}


def _written(one: ContainerGrant) -> dict[str, Any]:
    text: dict[str, Any] = {
        "kind": one.kind.value,
        "cpus": str(one.cpus),
        "memory": list(bits_of(one.memory[0].mask)) if one.memory else [],
        "devices": {name: sorted(ids) for name, ids in one.devices.items()},
    }
    if one.memory:
        text["memory_blocks"] = [
            {"type": block.resource, "size": block.amount, "numa": list(bits_of(block.mask))} for block in one.memory
        ]
    if one.hint is not None:
        numa = None if one.hint.mask is None else list(bits_of(one.hint.mask))
        text["hint"] = {"numa": numa, "preferred": one.hint.preferred}
    return text
