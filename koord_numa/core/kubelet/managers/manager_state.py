"""
A kubelet's managers at one moment: free CPUs, devices and memory, and what every pod on the node was given.

States are values: admitting or removing a pod makes a new one and leaves the old one intact, so trying something costs no more
than a few small copies. ``admit.py`` decides; this module only keeps the managers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any, Final

from koord_numa.core.kubelet.managers.aggregates import PodDemand, pod_demand
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.memory import MemoryTable
from koord_numa.core.kubelet.managers.results import Grant
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import INIT
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, MILLI, PODS, ResourceList, add, subtract, without_zeros
from koord_numa.core.value_objects import ValueObject, replace, value_field

MOST_ANSWERS: Final = 4
"""So many pods' answers are remembered with a state of the managers."""


@dataclass(slots=True)
class ManagerState:
    """
    What is free right now. A draft to be changed while one pod is admitted; never changed once it is part of a state.

    ``answers`` are what ``dry_run`` was asked last in states with these managers, and answered: who decides on a pod and then counts it in
    asks the same twice.
    """

    cpus: int  # bits of the CPUs that may become exclusive
    devices: dict[str, int]  # resource -> bits of the devices that some pod has
    memory: MemoryTable | None  # None: the memory manager is off
    # Excluded from comparison and text: a cache is no part of the value.
    answers: tuple[tuple[tuple[object, ...], Any], ...] = field(default=(), init=False, repr=False, compare=False)

    def copy(self) -> "ManagerState":
        """A draft of its own."""
        return ManagerState(self.cpus, dict(self.devices), self.memory.copy() if self.memory is not None else None)

    def known(self, question: tuple[object, ...]) -> Any:
        """What was answered to this question, whose parts are compared by identity; ``None`` where it was not asked of late."""
        for asked, answer in self.answers:
            if all(map(is_, asked, question)):
                return answer
        return None

    def remember(self, question: tuple[object, ...], answer: object) -> None:
        """Keep an answer, in the place of the oldest one."""
        self.answers = (*self.answers[1 - MOST_ANSWERS :], (question, answer))

    def release(self, grant: Grant, node: KubeletNode) -> None:
        """Give back what a pod was given: CPUs and devices of all containers, memory of those that run."""
        for container in grant.containers:
            # CPUs of init containers may be held by app containers too; a union counts each once.
            self.cpus |= container.cpus.bits
            for resource, ids in container.devices.items():
                places = node.devices[resource].places
                for device in ids:
                    self.devices[resource] &= ~(1 << places[device])
            # Regular init containers gave their memory back when the next container started, but not their CPUs and devices.
            if self.memory is not None and container.kind is not INIT:
                for block in container.memory:
                    self.memory.release(block)


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """A pod on the node: what it was given, what it counts as in the last admission check, and what it asks the managers for."""

    grant: Grant
    requests: ResourceList
    demand: PodDemand | None = field(default=None, repr=False, compare=False)


class KubeletState(ValueObject):
    """The node, the managers, and the pods by uid."""

    node: KubeletNode
    managers: ManagerState
    pods: Mapping[str, AdmittedPod] = value_field(default_factory=dict)
    requested: ResourceList = value_field(default_factory=dict)

    @classmethod
    def empty(cls, node: KubeletNode) -> "KubeletState":
        """The managers before the first pod."""
        return cls(
            node=node,
            managers=ManagerState(
                cpus=node.machine.bits & ~node.reserved if node.pins_cpus else 0,
                devices=dict.fromkeys(node.devices, 0),
                memory=MemoryTable.of(node.memory) if node.pins_memory else None,
            ),
        )

    def with_pod(self, uid: str, request: PodRequest, grant: Grant, managers: ManagerState) -> "KubeletState":
        """The state after this grant, whose ``managers`` the decision worked out on a draft of these."""
        resident = AdmittedPod(grant, {**effective_requests(request), PODS: 1}, pod_demand(request))
        return replace(
            # A new state shares everything that the pod did not change.
            self,
            managers=managers,
            pods={**self.pods, uid: resident},
            requested=add(self.requested, resident.requests),
        )

    def with_memory(self, memory: MemoryTable | None) -> "KubeletState":
        """The same state with other memory managers."""
        return replace(self, managers=ManagerState(self.managers.cpus, self.managers.devices, memory))

    def without(self, uid: str) -> "KubeletState":
        """The state after the pod is gone; unchanged when it was never there."""
        resident = self.pods.get(uid)
        if resident is None:
            return self
        managers, pods = self.managers_without(resident), dict(self.pods)
        del pods[uid]
        requested = subtract(self.requested, resident.requests)
        # Without zeros, so that a state after a departure equals the one before the arrival.
        return KubeletState(
            self.node, managers, pods, without_zeros(requested) if 0 in requested.values() else requested
        )

    def managers_without(self, resident: AdmittedPod) -> ManagerState:
        """The managers after one of the pods is gone."""
        managers = self.managers.copy()
        managers.release(resident.grant, self.node)
        return managers


def free_on(node: KubeletNode, managers: ManagerState, numa: int) -> dict[str, int]:
    """What is free on one NUMA node, in our units: exclusive CPUs (milli), memory by type, devices near it."""
    free = {
        name: (pool.near(1 << numa) & pool.healthy & ~managers.devices[name]).bit_count()
        for name, pool in node.devices.items()
    }
    if node.pins_cpus:
        free[CPU] = (managers.cpus & node.machine.numa_bits[numa]).bit_count() * MILLI
    if managers.memory is not None:
        free.update(managers.memory.free[numa])
    return free
