"""
One state that a kubelet may be in: where it put every pod that was bound to its node, replayed in the order of the binds.

Theory. A kubelet decides by its state and its configuration alone, so its state follows from what reached it, in order. What nobody tells
leaves a choice, and each choice is a hypothesis of its own: the moment at which a pod left, the CPUs that a container took over from an
init container, how CPUs were dealt out over NUMA nodes. Every hypothesis is a state that the kubelet can really be in; a pod's fate or a
published topology that contradicts it rules it out.

Example: NUMA node 0 has 4 CPUs free, node 1 has 16. Pod a (8 CPUs) is bound and goes to node 1. Then pod b, which held 8 CPUs of node 0, is
seen gone. It may have left before a came: then a is on node 0. Both hypotheses stand until a topology shows a's CPUs on one of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from koord_numa.core.kubelet.managers.admit import Trust
from koord_numa.core.kubelet.managers.aggregates import PodDemand
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState
from koord_numa.core.kubelet.managers.results import ContainerGrant, Grant
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.value_objects import value_object

Signature = tuple[object, ...]
"""Where a pod sits: equal for grants that no topology could tell apart."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod that reached the kubelet lately. ``when`` is the time of its bind, ``before`` the hypothesis without it."""

    uid: str
    request: PodRequest
    when: float
    before: "Hypothesis"


@value_object
class Hypothesis:
    """
    ``state`` is what the kubelet's managers hold. ``loose`` are, by pod, CPU bits that its finished init containers hold here and may have
    been taken over by its later containers in truth. ``spread`` are pods whose CPUs may be dealt out over NUMA nodes otherwise.

    ``gone`` has the grants of pods that left and that a late topology may still show, ``None`` where their place was not known.
    ``strangers`` are pods whose place is not known, whose use is only in the sums. ``recent`` are the latest arrivals, oldest first.
    ``unexplained`` are pods whose fate is another one than this state had foreseen: something has happened that nobody has seen yet.
    ``options`` names what is assumed of the configuration although it is unlikely and nobody published it.
    """

    state: KubeletState
    loose: Mapping[str, int] = field(default_factory=dict)
    spread: frozenset[str] = frozenset()
    gone: Mapping[str, Grant | None] = field(default_factory=dict)
    strangers: frozenset[str] = frozenset()
    recent: tuple[Arrival, ...] = ()
    unexplained: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()
    trust: Trust = Trust.EXACT

    def has(self, uid: str) -> bool:
        """Did the kubelet admit this pod, and is it still there?"""
        return uid in self.state.pods or uid in self.strangers

    @property
    def signature(self) -> Signature:
        """Equal for hypotheses that differ in nothing that matters."""
        pods = tuple(sorted((uid, signature(pod.grant, self.state.node)) for uid, pod in self.state.pods.items()))
        memory = self.state.managers.memory
        groups = () if memory is None else tuple(sorted(memory.groups.items()))
        return (
            pods,
            groups,
            tuple(sorted(self.strangers)),
            tuple(sorted(self.unexplained)),
            self.options,
            id(self.state.node),
        )


def signature(grant: Grant, node: KubeletNode) -> Signature:
    """Which NUMA nodes every container uses, and how much of each."""
    return tuple(
        (
            one.name,
            _place(one, node),
            tuple((block.resource, block.mask) for block in one.memory if block.amount),
            tuple((name, tuple(sorted(_near(node, name, ids)))) for name, ids in sorted(one.devices.items())),
        )
        for one in grant.containers
    )


def _place(one: ContainerGrant, node: KubeletNode) -> tuple[int, ...]:
    """How many CPUs an init container still holds no topology shows: only where they are counts."""
    counts = cpus_by_numa(one.cpus.bits, node)
    return tuple(min(count, 1) for count in counts) if one.kind is ContainerKind.INIT else counts


def cpus_by_numa(bits: int, node: KubeletNode) -> tuple[int, ...]:
    """How many of these CPUs are on each NUMA node, in the order of the machine's."""
    return tuple((bits & here).bit_count() for here in node.machine.numa_bits.values())


def _near(node: KubeletNode, resource: str, ids: Iterable[str]) -> Iterator[int]:
    wanted = set(ids)
    return (device.near for device in node.devices[resource].devices if device.id in wanted)


def may_lie_otherwise(one: ContainerGrant, node: KubeletNode) -> bool:
    """Are its CPUs taken from several NUMA nodes, in numbers that depend on CPU ids?"""
    if not one.cpus or node.ids_are_real or len(node.machine.numa_ids) == 1:
        return False
    mask = one.hint.mask if one.hint is not None else None
    return mask is None or mask.bit_count() > 1 or node.static_options.align_by_socket


def pins_init_cpus(demand: PodDemand, node: KubeletNode) -> bool:
    """Is it open which of an init container's CPUs later containers get again?"""
    return (
        node.pins_cpus
        and not node.ids_are_real
        and any(part.cpus and container.kind is ContainerKind.INIT for container, part in demand.containers)
    )


def released(before: Hypothesis, uid: str) -> Hypothesis:
    """The hypothesis without this pod. What a stranger held stays counted until a topology shows it free."""
    if uid in before.unexplained:
        before = replace(before, unexplained=before.unexplained - {uid})
    if uid in before.strangers:
        return replace(before, strangers=before.strangers - {uid}, gone={**before.gone, uid: None})
    pod = before.state.pods.get(uid)
    if pod is None:
        return before
    return replace(
        before,
        state=before.state.without(uid),
        loose={other: bits for other, bits in before.loose.items() if other != uid},
        spread=before.spread - {uid},
        gone={**before.gone, uid: pod.grant},
    )


def distinct(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Each once, in order; of equal ones that with most CPUs loose, whose variants are the others."""
    found: dict[Signature, Hypothesis] = {}
    for one in hypotheses:
        key = one.signature
        if key not in found or _loose_cpus(one) > _loose_cpus(found[key]):
            found[key] = one
    return list(found.values())


def _loose_cpus(one: Hypothesis) -> int:
    return sum(bits.bit_count() for bits in one.loose.values())


def with_grant(one: Hypothesis, uid: str, containers: tuple[ContainerGrant, ...]) -> Hypothesis:
    """The hypothesis with these containers as what the pod was given."""
    pod = one.state.pods[uid]
    pods = {**one.state.pods, uid: replace(pod, grant=replace(pod.grant, containers=containers))}
    return replace(one, state=replace(one.state, pods=pods))
