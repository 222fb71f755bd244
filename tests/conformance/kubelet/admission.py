"""
The kubelet's answers to whole sequences of pods: what each case says, in the core's types.

``load`` reads one sequence; the tests replay it once with the exact model, and once as a scheduler sees it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from koord_numa.core.cpu_topology import cpu_topology_of
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admit import Admitted, NotAdmitted, admit_pod
from koord_numa.core.kubelet.state import ContainerGrant, DevicePool, Grant, KubeletNode, KubeletState, PluginDevice
from koord_numa.core.numa.hints import numa_ids
from koord_numa.core.objects.node import KubeletConfig, Zone
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import ResourceList, amount, supply
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
    memory: Mapping[int, int]  # all bytes per NUMA node
    leaks: bool

    @cached_property
    def played(self) -> tuple[tuple[KubeletState, Admitted | NotAdmitted | None], ...]:
        """The exact model's state after each step, and its answer to a pod."""
        found: list[tuple[KubeletState, Admitted | NotAdmitted | None]] = []
        state = KubeletState.empty(self.node)
        for step in self.steps:
            verdict = None if step.request is None else admit_pod(state, step.uid, step.request)
            state = state.without(step.uid) if verdict is None else verdict.state
            found.append((state, verdict))
        return tuple(found)


def load(case: Case) -> Sequence:
    """Read one line of the file."""
    return Sequence(
        id=case["id"],
        node=load_node(case["node"], case.get("reserved_set", "")),
        steps=tuple(_step(step) for step in case["steps"]),
        nrt_after=case["nrt_after"],
        memory=dict(zip(case["node"]["numa_nodes"], case["node"]["memory"], strict=True)),
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


def load_node(node: Mapping[str, Any], reserved: str) -> KubeletNode:
    """The node of a sequence."""
    options = {name: value == "true" for name, value in node["cpu_options"].items()}
    return KubeletNode(
        machine=cpu_topology_of(node["cpus"], numa_ids=node["numa_nodes"], distances=node["distances"]),
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


def _memory(node: Mapping[str, Any]) -> Iterator[tuple[int, ResourceList]]:
    for place, numa in enumerate(node["numa_nodes"]):
        pages = {f"hugepages-{size}": counts[place] * PAGE_BYTES[size] for size, counts in node["hugepages"].items()}
        rest = node["memory"][place] - sum(pages.values()) - node["reserved_memory"][place]
        yield numa, {"memory": rest, **pages}


def _devices(rows: list[list[Any]]) -> Iterator[PluginDevice]:
    """The recorded plugin prefers the lowest number."""
    for row in sorted(rows, key=lambda row: int("".join(letter for letter in row[0] if letter.isdigit()))):
        near = row[1] if isinstance(row[1], list) else [] if row[1] is None else [row[1]]
        yield PluginDevice(id=row[0], near=sum(1 << numa for numa in near), healthy=len(row) < 3)


def written(grant: Grant) -> dict[str, Any]:
    """A grant as the file writes it."""
    return {"admit": True, "qos": str(grant.qos), "containers": {one.name: _written(one) for one in grant.containers}}


def _written(one: ContainerGrant) -> dict[str, Any]:
    text: dict[str, Any] = {
        "kind": one.kind.value,
        "cpus": str(one.cpus),
        "memory": list(numa_ids(one.memory[0].mask)) if one.memory else [],
        "devices": {name: sorted(ids) for name, ids in one.devices.items()},
    }
    if one.memory:
        text["memory_blocks"] = [
            {"type": block.resource, "size": block.amount, "numa": list(numa_ids(block.mask))} for block in one.memory
        ]
    if one.hint is not None:
        numa = None if one.hint.mask is None else list(numa_ids(one.hint.mask))
        text["hint"] = {"numa": numa, "preferred": one.hint.preferred}
    return text


def exported(node: KubeletNode, state: KubeletState, capacity: Mapping[int, int]) -> tuple[Zone, ...]:
    """Return the topology that an ideal exporter publishes of this state. ``capacity`` is all memory per NUMA node, in bytes."""
    return tuple(_zone(node, state, numa, capacity.get(numa, 0)) for numa in node.machine.numa_ids)


def _zone(node: KubeletNode, state: KubeletState, numa: int, memory: int) -> Zone:
    rows: dict[str, tuple[int, int, int]] = {}  # capacity, allocatable, available
    if node.pins_cpus and (cpus := node.machine.numa_bits[numa]):
        counted = (cpus, cpus & ~node.reserved, cpus & state.managers.cpus)
        all_of, usable, free = (bits.bit_count() * 1000 for bits in counted)
        rows["cpu"] = (all_of, usable, free)
    if state.managers.memory is not None:
        for kind, amount_of in node.memory[numa].items():
            if kind == "memory" or amount_of:
                all_of = memory if kind == "memory" else amount_of
                rows[kind] = (all_of, amount_of, state.managers.memory.free[numa][kind])
    for name, pool in node.devices.items():
        if near := pool.near(1 << numa) & pool.healthy:
            rows[name] = (near.bit_count(), near.bit_count(), (near & ~state.managers.devices[name]).bit_count())
    rows = rows or {"cpu": (node.machine.numa_bits[numa].bit_count() * 1000, 0, 0)}
    capacity, allocatable, available = ({name: row[part] for name, row in rows.items()} for part in range(3))
    return Zone(numa, capacity, allocatable, available)


def published(nrt: Mapping[str, Any]) -> tuple[Zone, ...]:
    """The zones of a recorded NodeResourceTopology."""
    zones = []
    for zone in nrt["zones"]:
        columns = {
            part: {row["name"]: supply(row["name"], row[part]) for row in zone["resources"]}
            for part in ("capacity", "allocatable", "available")
        }
        zones.append(Zone(int(zone["name"].removeprefix("node-")), **columns))
    return tuple(zones)
