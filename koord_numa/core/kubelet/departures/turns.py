"""What the containers of one pod ask of single NUMA nodes, one after the other, and what pods hold of them, in plain numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.demand import ContainerDemand, pod_demand
from koord_numa.core.kubelet.room import STRICT
from koord_numa.core.kubelet.state import Grant, KubeletNode
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletScope
from koord_numa.core.resources import CPU, MILLI

Amounts = tuple[int, ...]
"""What is free on a NUMA node, or asked for, of each resource in the order of ``Turns.names``."""

Own = tuple[Amounts, Amounts, tuple[int, ...]]
"""
What containers of the pod have taken of a NUMA node so far, what init containers have left there to later ones, and the numbers of CPUs
that init containers have got there since a container last kept CPUs for itself.
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One container: what it asks for; ``sized`` is where it fits by its size alone."""

    kind: ContainerKind
    wants: Amounts
    sized: Sequence[bool]


@dataclass(frozen=True, slots=True)
class Turns:
    """
    The containers of a pod that the managers give anything, in their order, on one node.

    ``names`` are the resources, of which the first ``counted`` are devices and CPUs, which pin later containers, and the rest memory.
    ``whole`` is what all containers ask for together: more makes no difference.
    """

    numas: Sequence[int]
    names: Sequence[str]
    counted: int
    each: Sequence[Turn]
    whole: Amounts
    start: tuple[Own, ...]

    @classmethod
    def of(cls, request: PodRequest, node: KubeletNode) -> "Turns | None":
        """``None`` where containers may get several NUMA nodes, or rules beside amounts decide."""
        if not _goes_by_amounts(node):
            return None
        parts = [(container.kind, part) for container, part in pod_demand(request).containers]
        devices = sorted({name for _, part in parts for name in part.devices if name in node.devices})
        kinds = sorted({kind for _, part in parts for kind in part.memory or ()}) if node.pins_memory else []
        cpus = [CPU] if node.pins_cpus and any(part.cpus for _, part in parts) else []
        if not all(_is_simple(name, parts, node) for name in devices):
            return None
        if any(kind not in amounts for amounts in node.memory.values() for kind in kinds):
            return None
        names = [*devices, *cpus, *kinds]
        numas = sorted(node.machine.numa_ids)
        sizes = [_size(node, numa, names) for numa in numas]
        each = []
        for kind, part in parts:
            asked = {**part.devices, **(part.memory or {}), CPU: part.cpus}
            wants = tuple(asked.get(name, 0) for name in names)
            sized = [all(want <= has for want, has in zip(wants, size, strict=True)) for size in sizes]
            if not any(sized):
                return None
            if any(wants):
                each.append(Turn(kind, wants, sized))
        nothing = (0,) * len(names)
        whole = tuple(map(sum, zip(*(turn.wants for turn in each), strict=True))) if each else nothing
        return cls(numas, names, len(devices) + len(cpus), each, whole, ((nothing, nothing, ()),) * len(sizes))

    @property
    def cpus(self) -> int | None:
        """The place of CPUs among the resources; ``None`` where none are asked for."""
        return self.counted - 1 if CPU in self.names else None

    def sums(self, most: int) -> Sequence[set[int]] | None:
        """Of each resource what any of the containers ask for together; ``None`` where these are more than so many amounts."""
        found = [{0} for _ in self.names]
        for turn in self.each:
            found = [sums | {each + want for each in sums} for sums, want in zip(found, turn.wants, strict=True)]
            if any(len(sums) > most for sums in found):
                return None
        return found

    def size(self, node: KubeletNode, numa: int) -> Amounts:
        """What the NUMA node has when nothing is in use, or more."""
        return _size(node, numa, self.names)

    def amounts(self, free: Mapping[str, int]) -> Amounts:
        """What is free of each resource, of what ``free_on`` says."""
        return tuple(free.get(name, 0) // (MILLI if name == CPU else 1) for name in self.names)

    def held(self, grant: Grant, node: KubeletNode) -> Mapping[int, Amounts] | None:
        """What comes free on NUMA nodes once a pod is gone; ``None`` where its memory is bound to several."""
        found: dict[int, dict[str, int]] = {}
        cpus = 0
        for given in grant.containers:
            cpus |= given.cpus.bits
            for name, ids in given.devices.items():
                for device in node.devices[name].devices if name in self.names else ():
                    for numa in members(device.near) if device.healthy and device.id in ids else ():
                        here = found.setdefault(numa, {})
                        here[name] = here.get(name, 0) + 1
            # Of init containers the memory is free already.
            for block in given.memory if given.kind is not ContainerKind.INIT else ():
                if block.mask.bit_count() > 1:
                    return None
                here = found.setdefault(members(block.mask)[0], {})
                here[block.resource] = here.get(block.resource, 0) + block.amount
        for numa, bits in node.machine.numa_bits.items():
            if cpus & bits:
                found.setdefault(numa, {})[CPU] = (cpus & bits).bit_count()
        amounts = {numa: tuple(here.get(name, 0) for name in self.names) for numa, here in found.items()}
        return {numa: here for numa, here in amounts.items() if any(here)}


def _goes_by_amounts(node: KubeletNode) -> bool:
    if node.ids_are_real or node.whole_cores is not None or node.static_options.align_by_socket:
        return False
    machine = node.machine
    if node.prefers_closest and len({machine.distance(numa, numa) for numa in machine.numa_ids}) > 1:
        return False
    return node.config.topology_policy in STRICT and node.config.topology_scope is KubeletScope.CONTAINER


def _is_simple(name: str, parts: Iterable[tuple[ContainerKind, ContainerDemand]], node: KubeletNode) -> bool:
    """Is each device near one NUMA node, and asked for by all containers that name it?"""
    if node.devices[name].assumed or any(part.devices.get(name) == 0 for _, part in parts):
        return False
    return all(device.near.bit_count() == 1 for device in node.devices[name].devices)


def _size(node: KubeletNode, numa: int, names: Iterable[str]) -> Amounts:
    """What the NUMA node has of each resource when nothing is in use, unhealthy devices and reserved CPUs included."""
    memory = node.memory.get(numa, {})
    return tuple(
        node.machine.numa_bits[numa].bit_count()
        if name == CPU
        else node.devices[name].on.get(numa, 0).bit_count()
        if name in node.devices
        else memory.get(name, 0)
        for name in names
    )
