"""The programs on a simulated node that admit or reject bound pods: a kubelet, or koordlet with CPUs of the scheduler."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.kubelet_assignment import assign
from koord_numa.core.cpus.kubelet_options import StaticOptions
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.kubelet import (
    ContainerGrant,
    DevicePool,
    KubeletNode,
    KubeletState,
    NotAdmitted,
    PluginDevice,
    admit_pod,
    check_node_fit,
)
from koord_numa.core.objects.node import KubeletAllocation, KubeletCheckpoint, Node
from koord_numa.core.objects.request import Assignment, Pod, PodKey
from koord_numa.core.objects.vocabulary import ContainerKind, CpuBindPolicy, NodeBindPolicy, NumaPolicy, QosClass
from koord_numa.core.pod_resources import (
    amplify,
    amplify_all,
    effective_requests,
    is_pinned_by_static_kubelet,
    may_use_cpuset,
)
from koord_numa.core.resources import CPU, MILLI, PODS, ResourceList, add, subtract
from koord_numa.sandbox.machines.description import Hardware, NodeDescription
from koord_numa.sandbox.machines.kubelet_files import KubeletMemory, checkpoint
from koord_numa.sandbox.machines.topologies import (
    Json,
    Usage,
    exported_topology,
    koordinator_topology,
    node_object,
    zone_offer,
)
from koord_numa.wire import parse_node

NumaCapacity = Mapping[str, Mapping[int, int]]
"""Amount by resource and NUMA node mask: bytes of memory without huge pages, bytes of huge pages, number of devices.

The mask is 0 for devices with unknown NUMA node. Only claims from any NUMA node can use them.
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """An amount of a resource from the combined capacity of the NUMA nodes in ``mask``."""

    resource: str
    amount: int
    mask: int


@dataclass(frozen=True, slots=True)
class AgentAllocation:
    """Exclusive CPUs and devices by id, and claims on other resources that must not be allocated twice."""

    cpus: CpuSet = EMPTY
    devices: frozenset[str] = frozenset()
    claims: tuple[Claim, ...] = ()


def capacity_of(node: NodeDescription) -> NumaCapacity:
    """Return the capacity except CPUs, which have ids.

    It is amplified like the node, because allocations are amplified too.
    """
    stock: dict[str, dict[int, int]] = {}
    counts = node.hardware.device_counts()
    for numa in node.hardware.machine.numa_ids:
        for name, amount in amplify_all(zone_offer(node, numa), node.amplification).items():
            if name != CPU:
                stock.setdefault(name, {})[1 << numa] = amount
    for name, count in counts.items():
        placed = stock.setdefault(name, {})
        placed[0] = count - sum(placed.values())
    return stock


def with_rest(claims: Iterable[Claim], requests: ResourceList, stock: NumaCapacity, anywhere: int) -> tuple[Claim, ...]:
    """Return the claims, plus claims from ``anywhere`` for the remaining requests of the pod."""
    found = [claim for claim in claims if claim.resource in stock and claim.amount]
    for name in sorted(stock):
        rest = requests.get(name, 0) - sum(claim.amount for claim in found if claim.resource == name)
        if rest > 0:
            found.append(Claim(name, rest, anywhere))
    return tuple(sorted(found, key=lambda claim: (claim.resource, claim.mask)))


WRONG_PLACEMENT = "WrongPlacement"
"""Reason of a pod that the kubelet would admit but whose placement violates a rule."""


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """The pod runs and holds ``held`` exclusively. Without CPUs it runs in a shared pool."""

    held: AgentAllocation = field(default_factory=AgentAllocation)


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """The pod is rejected. ``reason`` and ``message`` are written into its status."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RejectedPod:
    """A pod that a node rejected, with the reason."""

    node: str
    pod: PodKey
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.node} refuses {self.pod}: {self.reason}: {self.message}"


class NodeAgent(Protocol):
    """The agent of a node. It admits or rejects pods and publishes a topology."""

    def admit(self, pod: Pod) -> AdmittedPod | RefusedPod:
        """Admit or reject a pod that was bound or whose assignment changed. Only an admitted pod is accounted for."""
        ...

    def remove(self, uid: str) -> None:
        """Release a terminated pod. An unknown pod is ignored."""
        ...

    def topology(self) -> Json:
        """Return the current NodeResourceTopology."""
        ...


# A node whose kubelet selects CPUs.
#
# It admits pods exactly like the kubelet's managers and publishes like an exporter.

MAX_GONE: Final = 256
"""Maximum number of remembered uids of departed pods, as in the node agent."""


class KubeletAgent:
    """A kubelet with its CPU, memory, device and topology managers."""

    def __init__(self, node: NodeDescription) -> None:
        """Create the agent of an empty node."""
        self.node = node
        self.kubelet = kubelet_node(node)
        self._capacity = capacity_of(node)
        self._state = KubeletState.empty(self.kubelet)
        self._pods: dict[str, PodKey] = {}
        self._stale: dict[str, tuple[ContainerGrant, ...]] = {}  # of terminated pods, until the next admission
        self._gone: dict[str, None] = {}  # most recent uids of rejected and terminated pods

    def admit(self, pod: Pod) -> AdmittedPod | RefusedPod:
        """Admit the pod. A pod that was admitted before keeps its allocation, whatever changes."""
        uid = pod.key.uid
        if uid not in self._pods:
            # The kubelet releases terminated pods before it allocates.
            self._stale.clear()
            verdict = admit_pod(self._state, uid, pod.request)
            # Also for a rejected pod: it is the state after the kubelet has cleaned up.
            self._state = verdict.state
            if isinstance(verdict, NotAdmitted):
                self._depart(uid)
                return RefusedPod(verdict.refusal.reason, verdict.refusal.detail)
            self._pods[uid] = pod.key
        return AdmittedPod(self._allocation(uid))

    def remove(self, uid: str) -> None:
        """Release all resources of a pod."""
        if self._pods.pop(uid, None) is not None:
            self._stale[uid] = self._state.pods[uid].grant.containers
            self._depart(uid)
            self._state = self._state.without(uid)

    def topology(self) -> Json:
        """Return the topology that an exporter publishes."""
        pods = [(key.namespace, key.name) for key in self._pods.values()]
        return exported_topology(self.node, self.kubelet, self._state, pods)

    def grants(self) -> dict[str, tuple[ContainerGrant, ...]]:
        """Return the kubelet's grants to containers, by pod uid."""
        return {uid: admitted.grant.containers for uid, admitted in self._state.pods.items()}

    def memory(self) -> KubeletMemory:
        """Return the content of the kubelet's checkpoint files."""
        return KubeletMemory(self.kubelet, self.grants(), dict(self._stale))

    def checkpoint(self, read_at: float) -> KubeletCheckpoint:
        """Return the state that a node agent publishes. ``read_at`` is in seconds since the epoch."""
        return checkpoint(self.memory(), self._pods, self._gone, read_at)

    def _depart(self, uid: str) -> None:
        self._gone[uid] = None
        while len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]

    def _allocation(self, uid: str) -> AgentAllocation:
        """Return the allocation of all containers.

        An init container returns its memory, but neither CPUs nor devices.
        """
        resident = self._state.pods[uid]
        containers = resident.grant.containers
        blocks = [block for each in containers if each.kind is not ContainerKind.INIT for block in each.memory]
        return AgentAllocation(
            cpus=CpuSet.of(cpu for each in containers for cpu in each.cpus),
            devices=frozenset(
                f"{resource} {device}"
                for each in containers
                for resource in each.devices
                for device in each.devices[resource]
            ),
            claims=with_rest(
                (Claim(block.resource, block.amount, block.mask) for block in blocks),
                resident.requests,
                self._capacity,
                self.kubelet.machine.numa_mask,
            ),
        )


def kubelet_node(node: NodeDescription) -> KubeletNode:
    """Return the facts that a kubelet has before the first pod."""
    hardware = node.hardware
    return KubeletNode(
        machine=hardware.machine,
        config=node.kubelet,
        allocatable=node.allocatable,
        memory={numa: _memory(node, numa) for numa in hardware.machine.numa_ids},
        devices=_devices(hardware),
    )


def _memory(node: NodeDescription, numa: int) -> ResourceList:
    """Return the memory of a NUMA node. It has an entry for every huge page size of the machine."""
    sizes = {name: 0 for other in node.hardware.pages for name in node.hardware.hugepage_bytes(other)}
    plain = max(0, node.hardware.plain_memory(numa) - node.reserved_memory)
    return {"memory": plain, **sizes, **node.hardware.hugepage_bytes(numa)}


def _devices(hardware: Hardware) -> Mapping[str, DevicePool]:
    found: dict[str, list[PluginDevice]] = {}
    for device in hardware.devices:
        # A device without a NUMA node has no preference, like a device whose plugin reports no topology.
        near = 0 if device.numa is None else 1 << device.numa
        found.setdefault(device.resource, []).append(PluginDevice(device.id, near))
    return {resource: DevicePool(tuple(devices)) for resource, devices in sorted(found.items())}


# The rules for placements on nodes whose CPUs the scheduler selects. Every rule is a function that yields violations.
#
# The rules follow from the meaning of the annotations and do not depend on the strategy of a scheduler.

_BINDING: Final = (CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS)


@dataclass(frozen=True, slots=True)
class BoundPlacement:
    """A bound pod, the assignment in its annotation, and the state of the node without the pod."""

    pod: Pod
    held: Assignment
    description: NodeDescription
    node: Node  # labels as the scheduler parses them
    offers: Mapping[int, ResourceList]  # per NUMA node, amplified
    numa_held: Mapping[int, ResourceList]  # amplified amounts of other pods, per NUMA node
    owners: Mapping[int, str]  # CPU -> pod that holds it

    @property
    def machine(self) -> CpuTopology:
        """The CPU topology of the node."""
        return self.description.hardware.machine

    @property
    def requests(self) -> ResourceList:
        """The effective requests of the pod."""
        return effective_requests(self.pod.request)

    @property
    def numa_mask(self) -> int:
        """The NUMA nodes of the placement: of its amounts, CPUs and shared pools."""
        named = [numa for numa, _ in self.held.numa] + [pool.numa for pool in self.held.shared_pools]
        return self.machine.numa_of(self.held.cpus) | CpuSet.of(named).bits


def violations_of(situation: BoundPlacement) -> Iterator[str]:
    """Yield a message for every rule that the placement violates."""
    for rule in _RULES:
        yield from rule(situation)


def _cpus_are_there(s: BoundPlacement) -> Iterator[str]:
    outside = s.held.cpus - s.machine.all
    if outside:
        yield f"CPUs {outside} are not in the machine"
    # Two kinds of reservation: the node annotation, which schedulers observe, and the kubelet's reservedSystemCPUs.
    kept = s.held.cpus & (s.description.reserved | (s.description.kubelet.reserved_cpus or CpuSet()))
    if kept:
        yield f"CPUs {kept} are reserved"


def _cpus_are_free(s: BoundPlacement) -> Iterator[str]:
    by_owner: dict[str, int] = {}
    for cpu in s.held.cpus:
        if cpu in s.owners:
            by_owner[s.owners[cpu]] = by_owner.get(s.owners[cpu], 0) | 1 << cpu
    yield from (f"CPUs {CpuSet(bits)} belong to {owner}" for owner, bits in sorted(by_owner.items()))


def _cpus_are_as_many_as_asked(s: BoundPlacement) -> Iterator[str]:
    asked = s.requests.get(CPU, 0)
    # A pod without exclusive CPUs uses a shared pool, where CPUs are not counted.
    if s.held.cpus and len(s.held.cpus) * MILLI != asked:
        yield f"{len(s.held.cpus)} CPUs were given, {asked / MILLI:g} asked for"


def _binding_pods_have_cpus(s: BoundPlacement) -> Iterator[str]:
    """Check the bind policy of the pod itself.

    The default bind policy is configured in the scheduler and unknown here.
    """
    bind = s.pod.request.bind
    # A required policy takes precedence over a preferred policy. NONE means that no policy is required.
    wants = bind.required in _BINDING or (bind.preferred in _BINDING and bind.required is CpuBindPolicy.NONE)
    if wants and may_use_cpuset(s.pod.request) and s.requests.get(CPU, 0) and not s.held.cpus:
        yield f"no CPUs were given to a pod that asks for {bind.required or bind.preferred}"


def _bind_policy_holds(s: BoundPlacement) -> Iterator[str]:
    # The first rule reports CPUs outside the machine, which belong to no core.
    if not s.held.cpus or not s.held.cpus <= s.machine.all:
        return
    # Bit masks: the CPUs of the pod on each core, and all CPUs of these cores.
    cores = [core.bits & s.held.cpus.bits for core in s.machine.cores if core.bits & s.held.cpus.bits]
    whole = [core.bits for core in s.machine.cores if core.bits & s.held.cpus.bits]
    # Ignored for pods that are not allowed exclusive CPUs, even if the node allocates some.
    required = s.pod.request.bind.required if may_use_cpuset(s.pod.request) else CpuBindPolicy.NONE
    if _asks_full_cores(s, required) and cores != whole:
        yield f"CPUs {s.held.cpus} are not whole cores, as {_who_requires(s, required)} requires"
    spread = required is CpuBindPolicy.SPREAD_BY_PCPUS or s.node.bind_policy is NodeBindPolicy.SPREAD_BY_PCPUS
    if spread and any(bits.bit_count() > 1 for bits in cores):
        yield f"CPUs {s.held.cpus} share cores, against {_who_requires(s, required)}"


def _asks_full_cores(s: BoundPlacement, required: CpuBindPolicy) -> bool:
    kubelet = s.description.kubelet
    unlabelled = s.node.bind_policy is None  # any label value, including None, overrides the kubelet's option
    by_kubelet = unlabelled and kubelet.cpu_policy == "static" and kubelet.cpu_options.get("full-pcpus-only", False)
    by_node = s.node.bind_policy is NodeBindPolicy.FULL_PCPUS_ONLY
    return required is CpuBindPolicy.FULL_PCPUS or by_node or by_kubelet


def _who_requires(s: BoundPlacement, required: CpuBindPolicy) -> str:
    return f"the pod's {required}" if required in _BINDING else f"the node's {s.node.bind_policy or 'kubelet'}"


def _numa_nodes_exist(s: BoundPlacement) -> Iterator[str]:
    unknown = s.numa_mask & ~s.machine.numa_mask
    if unknown:
        yield f"NUMA nodes {CpuSet(unknown)} are not in the machine"


def _numa_amounts_fit(s: BoundPlacement) -> Iterator[str]:
    for numa, amounts in weights(s.held, s.description.amplification):
        for name, amount in sorted(amounts.items()):
            # A resource that the NUMA node does not offer is accounted for at node level.
            offer = s.offers.get(numa, {}).get(name)
            used = s.numa_held.get(numa, {}).get(name, 0)
            if offer is not None and used + amount > offer:
                yield f"NUMA node {numa} has {offer - used} of {offer} {name} left, {amount} were given"


def weights(held: Assignment, ratios: Mapping[str, float]) -> Iterator[tuple[int, ResourceList]]:
    """Yield the amounts that a pod uses of the amplified offers, by NUMA node.

    Exclusive CPUs are physical, so their amount is amplified. Amounts of pods in shared pools are already in amplified
    units.
    """
    for numa, amounts in held.numa:
        if held.cpus and CPU in amounts:
            yield numa, {**amounts, CPU: amplify(amounts[CPU], ratios.get(CPU))}
        else:
            yield numa, amounts


def _numa_amounts_cover_the_request(s: BoundPlacement) -> Iterator[str]:
    """Check that the amounts per NUMA node add up to the request, for every resource that the assignment lists."""
    given: dict[str, int] = {}
    for _, amounts in s.held.numa:
        for name, amount in amounts.items():
            given[name] = given.get(name, 0) + amount
    # Equal, because an excess would be held by the pod and used by no container.
    for name, amount in sorted(given.items()):
        asked = s.requests.get(name, 0)
        if amount != asked:
            yield f"{amount} {name} were given on NUMA nodes, {asked} asked for"


def _cpus_are_on_their_numa_nodes(s: BoundPlacement) -> Iterator[str]:
    # Assignments without CPU amounts place other resources only, such as memory.
    amounts = {numa: held.get(CPU, 0) for numa, held in s.held.numa}
    if not s.held.cpus or not any(amounts.values()):
        return
    for numa, bits in s.machine.numa_bits.items():
        count = (bits & s.held.cpus.bits).bit_count() * MILLI
        if count != amounts.get(numa, 0):
            yield f"{count // MILLI} CPUs are on NUMA node {numa}, which was charged {amounts.get(numa, 0) / MILLI:g}"


def _one_numa_node_is_one(s: BoundPlacement) -> Iterator[str]:
    # The policy of the pod or the node suffices: the strictest policy applies.
    policies = (s.pod.request.numa.policy, s.node.numa_policy)
    if NumaPolicy.SINGLE_NUMA_NODE in policies and s.numa_mask.bit_count() > 1:
        yield f"NUMA nodes {CpuSet(s.numa_mask)} were used under SingleNUMANode"


# Ordered: messages of the first rules explain messages of later rules.
_RULES: Final[tuple[Callable[[BoundPlacement], Iterator[str]], ...]] = (
    _cpus_are_there,
    _cpus_are_free,
    _cpus_are_as_many_as_asked,
    _binding_pods_have_cpus,
    _bind_policy_holds,
    _numa_nodes_exist,
    _numa_amounts_fit,
    _numa_amounts_cover_the_request,
    _cpus_are_on_their_numa_nodes,
    _one_numa_node_is_one,
)


# A node whose CPUs the scheduler selects.
#
# It checks placements against the rules and publishes like Koordinator's agent.

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
