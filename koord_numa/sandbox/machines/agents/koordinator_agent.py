"""A node whose CPUs the scheduler selects.

It checks placements against the rules and publishes like Koordinator's agent.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.kubelet.cpu_assignment import assign
from koord_numa.core.kubelet.demand import check_node_fit
from koord_numa.core.kubelet.options import StaticOptions
from koord_numa.core.objects.node import KubeletAllocation
from koord_numa.core.objects.request import Assignment, Pod
from koord_numa.core.objects.vocabulary import QosClass
from koord_numa.core.pod_resources import amplify_all, effective_requests, is_pinned_by_static_kubelet
from koord_numa.core.resources import CPU, MILLI, PODS, ResourceList, add, subtract
from koord_numa.sandbox.machines.agents.agent import (
    WRONG_PLACEMENT,
    AdmittedPod,
    AgentAllocation,
    Claim,
    RefusedPod,
    capacity_of,
    with_rest,
)
from koord_numa.sandbox.machines.hardware.description import NodeDescription
from koord_numa.sandbox.machines.hardware.topologies import Json, Usage, koordinator_topology, node_object, zone_offer
from koord_numa.sandbox.machines.placement_rules import BoundPlacement, violations_of, weights
from koord_numa.wire import parse_node

_NOTHING = Assignment()


@dataclass(frozen=True, slots=True)
class _Resident:
    pod: Pod
    held: Assignment
    kubelet_cpus: CpuSet  # selected by a static kubelet, not by the scheduler
    requests: ResourceList


class KoordinatorAgent:
    """Koordinator's agent and the kubelet on the same node."""

    def __init__(self, description: NodeDescription) -> None:
        """Create the agent of an empty node."""
        self._description = description
        self._node = parse_node(node_object(description, ""))
        self._capacity = capacity_of(description)
        self._residents: dict[str, _Resident] = {}
        self._offers = {
            numa: amplify_all(self._offer(numa), description.amplification)
            for numa in description.hardware.machine.numa_ids
        }

    def admit(self, pod: Pod) -> AdmittedPod | RefusedPod:
        """Check the placement. A pod that was admitted before is checked against all other pods again."""
        before = self._residents.pop(pod.key.uid, None)
        found = self._check(pod, before)
        if isinstance(found, RefusedPod):
            return found
        self._residents[pod.key.uid] = found
        return AdmittedPod(self._allocation(found))

    def _allocation(self, resident: _Resident) -> AgentAllocation:
        """Return the allocation of a pod.

        Devices have no ids: the scheduler selects their NUMA node, and the kubelet and the device plugin select the
        devices.
        """
        claims = (Claim(name, amount, 1 << numa) for numa, held in resident.held.numa for name, amount in held.items())
        return AgentAllocation(
            cpus=resident.held.cpus | resident.kubelet_cpus,
            claims=with_rest(claims, resident.requests, self._capacity, self._description.hardware.machine.numa_mask),
        )

    def remove(self, uid: str) -> None:
        """Release all resources of a pod."""
        self._residents.pop(uid, None)

    def topology(self) -> Json:
        """Return the topology that the agent publishes."""
        numa: dict[int, ResourceList] = {}
        own = closed = EMPTY
        for resident in self._residents.values():
            own |= resident.held.cpus
            closed |= resident.held.cpus if resident.pod.request.qos is QosClass.LSE else EMPTY
            for place, amounts in self._places(resident):
                numa[place] = add(numa.get(place, {}), amounts)
        pods = sorted(self._kubelet_pods(), key=lambda pod: pod.uid)
        return koordinator_topology(self._description, Usage(numa, own, closed, tuple(pods)))

    def _places(self, resident: _Resident) -> Iterator[tuple[int, ResourceList]]:
        """Yield the amounts of a pod per NUMA node.

        CPUs count on their NUMA node if the assignment has no CPU amounts.
        """
        yield from resident.held.numa
        counted = any(CPU in amounts for _, amounts in resident.held.numa)
        cpus = resident.kubelet_cpus if counted else resident.held.cpus | resident.kubelet_cpus
        for numa, bits in self._description.hardware.machine.numa_bits.items():
            yield numa, {CPU: (bits & cpus.bits).bit_count() * MILLI}

    def _check(self, pod: Pod, before: _Resident | None) -> _Resident | RefusedPod:
        requests = effective_requests(pod.request)
        held = pod.assignment or _NOTHING
        complaints = [pod.problem] if pod.problem else [*violations_of(self._situation(pod, held))]
        if complaints:
            return RefusedPod(WRONG_PLACEMENT, "; ".join(complaints))
        lacking = check_node_fit(requests, self._requested(), self._description.allocatable)
        if lacking is not None:
            return RefusedPod(lacking.reason, lacking.detail)
        kubelet_cpus = before.kubelet_cpus if before else self._pinned_by_kubelet(pod, held, requests)
        if kubelet_cpus is None:
            return RefusedPod("UnexpectedAdmissionError", "the kubelet has not enough CPUs left to assign")
        return _Resident(pod, held, kubelet_cpus, {**requests, PODS: 1})

    def _situation(self, pod: Pod, held: Assignment) -> BoundPlacement:
        return BoundPlacement(
            pod=pod,
            held=held,
            description=self._description,
            node=self._node,
            offers=self._offers,
            numa_held=self._numa_held(),
            owners=dict(self._owners()),
        )

    def _offer(self, numa: int) -> ResourceList:
        here = self._description.hardware.machine.numa_bits[numa] & self._description.reserved.bits
        return subtract(zone_offer(self._description, numa), {CPU: here.bit_count() * MILLI})

    def _numa_held(self) -> dict[int, ResourceList]:
        held: dict[int, ResourceList] = {}
        for resident in self._residents.values():
            for numa, amounts in weights(resident.held, self._description.amplification):
                held[numa] = add(held.get(numa, {}), amounts)
        return held

    def _owners(self) -> Iterator[tuple[int, str]]:
        for resident in self._residents.values():
            for cpu in resident.held.cpus | resident.kubelet_cpus:
                yield cpu, str(resident.pod.key)

    def _requested(self) -> ResourceList:
        requested: ResourceList = {PODS: 0}
        for resident in self._residents.values():
            requested = add(requested, resident.requests)
        return requested

    def _pinned_by_kubelet(self, pod: Pod, held: Assignment, requests: ResourceList) -> CpuSet | None:
        """Return the CPUs that the kubelet pins, or ``None`` if it has too few.

        A static kubelet pins Guaranteed pods with whole CPUs unless the scheduler has assigned CPUs.
        """
        kubelet = self._description.kubelet
        if held.cpus or kubelet.cpu_policy != "static" or not is_pinned_by_static_kubelet(pod.request):
            return EMPTY
        machine = self._description.hardware.machine
        kept = self._description.reserved | (kubelet.reserved_cpus or EMPTY)
        free = machine.all - kept - CpuSet.of(cpu for cpu, _ in self._owners())
        chosen = assign(machine, free, requests[CPU] // MILLI, StaticOptions.of(kubelet.cpu_options))
        return chosen if isinstance(chosen, CpuSet) else None

    def _kubelet_pods(self) -> Iterator[KubeletAllocation]:
        for resident in self._residents.values():
            key = resident.pod.key
            if resident.kubelet_cpus:
                yield KubeletAllocation(
                    key.namespace, key.name, key.uid, resident.kubelet_cpus, managed_by_kubelet=True
                )
