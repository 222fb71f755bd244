"""
Lives of nodes whose topologies are those of real exporters, which know only what the kubelet's pod resources API lists.

That is what running app containers and sidecars hold: no finished init container, whose CPUs the kubelet may keep all the same
(``apis/podresources/server_v1.go`` of the kubelet). resource-topology-exporter counts a memory block on each of its NUMA nodes in full, and
says of which pods its fingerprint is; NFD fills NUMA nodes up in ascending order, and may write no fingerprint.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from koord_numa.core.cpuset import members
from koord_numa.core.fingerprint import fingerprint
from koord_numa.core.kubelet.state import ContainerGrant, KubeletNode, MemoryBlock
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.resources import CPU, MILLI
from koord_numa.wire import names, parse_topology
from tests.kubelets.node_life import NodeLife

Use = Counter[tuple[int, str]]
"""Amounts in use, by NUMA node and resource."""


class Exporter(Enum):
    """Exporter that writes the topologies, and the pods of its fingerprint."""

    RTE = "all"
    RTE_EXCLUSIVE = "with-exclusive-resources"
    NFD = "without a method"
    NFD_BARE = "without a fingerprint"

    @property
    def is_rte(self) -> bool:
        """True for resource-topology-exporter."""
        return self in (Exporter.RTE, Exporter.RTE_EXCLUSIVE)


@dataclass
class ExportedLife(NodeLife):
    """As ``NodeLife``, with what ``exporter`` publishes."""

    exporter: Exporter = Exporter.RTE

    def scan(self) -> None:
        """The exporter asks the kubelet for pod resources."""
        super().scan()
        topology = self.scans[-1]
        topology["attributes"] = [*self._attributes(topology["attributes"])]
        used = in_use([*self._listed()], self.agent.kubelet, in_full=self.exporter.is_rte)
        for zone, parsed in zip(topology["zones"], parse_topology(topology).zones, strict=True):
            for row in zone["resources"]:
                name = row["name"]
                left = parsed.allocatable.get(name, 0) - used[parsed.numa, name]
                # Of devices NFD shows less than none where several are near the NUMA node on which it counts them.
                row["available"] = (
                    f"{left}m" if name == CPU else str(left if name in self.agent.kubelet.devices else max(0, left))
                )

    def _attributes(self, published: list[dict[str, str]]) -> Iterator[dict[str, str]]:
        ours = (names.ATTRIBUTE_FINGERPRINT, names.ATTRIBUTE_FINGERPRINT_METHOD)
        yield from (each for each in published if each["name"] not in ours)
        if self.exporter is Exporter.NFD_BARE:
            return
        pods = [
            (meta["namespace"], meta["name"])
            for uid, containers in self.agent.grants().items()
            if self.exporter is not Exporter.RTE_EXCLUSIVE or any(map(_holds, _running(containers)))
            for meta in [self.objects[uid]["metadata"]]
        ]
        yield {"name": names.ATTRIBUTE_FINGERPRINT, "value": fingerprint(pods)}
        if self.exporter.is_rte:
            yield {"name": names.ATTRIBUTE_FINGERPRINT_METHOD, "value": self.exporter.value}

    def _listed(self) -> Iterator[ContainerGrant]:
        for containers in self.agent.grants().values():
            yield from _running(containers)


def in_use(listed: list[ContainerGrant], node: KubeletNode, *, in_full: bool) -> Use:
    """Return the use of each NUMA node by these containers. Blocks over several NUMA nodes count on each ``in_full``, or fill them up."""
    used: Use = Counter()
    for each in listed:
        for numa, here in node.machine.numa_bits.items():
            used[numa, CPU] += (each.cpus.bits & here).bit_count() * MILLI
        for resource, ids in each.devices.items():
            near = {device.id: device.near for device in node.devices[resource].devices}
            for device in ids:
                used.update(_counted(near[device], resource, in_full=in_full))
    blocks = [block for each in listed for block in each.memory]
    # The narrow ones first: what they hold is certain.
    for block in sorted(blocks, key=lambda block: block.mask.bit_count()):
        used.update(_parts(block, node, used, in_full=in_full))
    return used


def _counted(near: int, resource: str, *, in_full: bool) -> Use:
    """Count a device near these NUMA nodes: on each of them ``in_full``, or as often on the last."""
    if in_full or not near:
        return Counter((numa, resource) for numa in members(near))
    return Counter({(near.bit_length() - 1, resource): near.bit_count()})


def _parts(block: MemoryBlock, node: KubeletNode, used: Use, *, in_full: bool) -> Use:
    parts: Use = Counter()
    left = block.amount
    for numa in members(block.mask):
        alone = in_full or block.mask.bit_count() == 1
        room = max(0, node.memory[numa].get(block.resource, 0) - used[numa, block.resource])
        parts[numa, block.resource] = block.amount if alone else min(left, room)
        left -= parts[numa, block.resource]
    return parts


def _running(containers: tuple[ContainerGrant, ...]) -> Iterator[ContainerGrant]:
    return (each for each in containers if each.kind is not ContainerKind.INIT)


def _holds(given: ContainerGrant) -> bool:
    return bool(given.cpus or given.memory or any(given.devices.values()))
