"""The rules for placements on nodes whose CPUs the scheduler selects. Every rule is a function that yields violations.

The rules follow from the meaning of the annotations and do not depend on the strategy of a scheduler.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Assignment, Pod
from koord_numa.core.objects.vocabulary import CpuBindPolicy, NodeBindPolicy, NumaPolicy
from koord_numa.core.pod_resources import amplify, effective_requests, may_use_cpuset
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.sandbox.machines.hardware.description import NodeDescription

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
    required = _required(s)
    if _asks_full_cores(s, required) and cores != whole:
        yield f"CPUs {s.held.cpus} are not whole cores, as {_who_requires(s, required)} requires"
    spread = required is CpuBindPolicy.SPREAD_BY_PCPUS or s.node.bind_policy is NodeBindPolicy.SPREAD_BY_PCPUS
    if spread and any(bits.bit_count() > 1 for bits in cores):
        yield f"CPUs {s.held.cpus} share cores, against {_who_requires(s, required)}"


def _required(s: BoundPlacement) -> CpuBindPolicy:
    """Return the required bind policy.

    It is ignored for pods that are not allowed exclusive CPUs, even if the node allocates some.
    """
    return s.pod.request.bind.required if may_use_cpuset(s.pod.request) else CpuBindPolicy.NONE


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
