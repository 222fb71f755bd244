"""
What a scheduler can see of one kubelet-owned node: published zones, the Node object, and the pods known to be there.

Gathers facts once per change of the node; ``admission.py`` decides on them. What nobody published is assumed here, carefully, and said.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from koord_numa.core.amounts import CPU, MILLI, PODS, Amounts, total
from koord_numa.core.kubelet.aggregates import PodDemand, pod_demand
from koord_numa.core.kubelet.cores import ARCHITECTURE, WholeCores, whole_cores
from koord_numa.core.kubelet.leftovers import without_leftovers
from koord_numa.core.kubelet.published import Published, surmise
from koord_numa.core.kubelet.replay import admit
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.ledger import Holding
from koord_numa.core.node import Node, Topology, Zone
from koord_numa.core.request import PodRequest

MOST_NUMA: Final = 16
"""A kubelet looks at every set of NUMA nodes; nobody runs one that has 131,072 sets to look at."""


class Knowledge(Enum):
    """How much of the kubelet's state is known."""

    EXACT = "exact"  # the whole configuration, and every pod in the order of its admission
    PUBLISHED = "published"  # what exporters publish: amounts per NUMA node


@dataclass(frozen=True, slots=True)
class KubeletView:
    """
    One node, ready for decisions. ``state`` is what the kubelet's books are, or may be.

    ``cores`` is the rule about whole cores to be kept in addition. ``groups_known`` is false when the pods known to be there do not explain
    where memory is in use. ``problem`` is non-empty when nothing may be placed that the kubelet would align. ``topology`` is what is
    published, less what is known to be gone from it; ``None`` where nobody publishes any.
    """

    node: str
    state: KubeletState
    knowledge: Knowledge
    cores: WholeCores = field(default_factory=WholeCores)
    groups_known: bool = True
    problem: str = ""
    topology: Topology | None = None
    demands: Mapping[str, tuple[PodRequest, PodDemand]] = field(default_factory=dict)  # by uid, of the pods there


def kubelet_view(
    node: Node,
    topology: Topology,
    holdings: Iterable[Holding],
    unpublished: Collection[str] = (),
    previous: KubeletView | None = None,
) -> KubeletView:
    """
    Gather what is known of one kubelet-owned node from what exporters publish.

    ``unpublished`` are the uids of pods that ``topology`` does not show yet: placed by us, or seen bound, since it was made. What they hold
    per NUMA node is subtracted here, and where nobody knows the NUMA node, what they ask for is missing on each. The other pods' use is in
    the zones' available amounts already. ``previous`` saves work only.
    """
    known = list(holdings)
    demands = _demands(known, previous)
    published = [demand for uid, (_, demand) in demands.items() if uid not in unpublished]
    zones = without_leftovers(topology.zones, published)
    zones = _without(zones, [held for held in known if held.pod.uid in unpublished], demands)
    facts = Published(
        config=topology.kubelet,
        zones=zones,
        distances=topology.distances,
        allocatable=node.allocatable,
        requested={**total(held.amounts for held in known), PODS: len(known)},
        pods=tuple(demand for _, demand in demands.values()),
    )
    guess = surmise(facts)
    seen = [part.cpus for demand in published for _, part in demand.containers if part.cpus]
    return KubeletView(
        node=node.name,
        state=guess.state,
        knowledge=Knowledge.PUBLISHED,
        cores=whole_cores(topology.kubelet, zones, node.labels.get(ARCHITECTURE, ""), seen)
        if guess.state.node.pins_cpus
        else WholeCores(),
        groups_known=guess.groups_known,
        problem=_problem(topology),
        topology=replace(topology, zones=zones),
        demands=demands,
    )


def exact_view(node: str, state: KubeletState) -> KubeletView:
    """A node whose kubelet we can follow step by step: its whole configuration is known, and so was every pod."""
    return KubeletView(node=node, state=state, knowledge=Knowledge.EXACT)


def after_admission(view: KubeletView, uid: str, request: PodRequest) -> KubeletView:
    """An exact view after the kubelet was given this pod, whether it took it or not."""
    return replace(view, state=admit(view.state, uid, request).state)


def after_removal(view: KubeletView, uid: str) -> KubeletView:
    """An exact view after the pod is gone."""
    return replace(view, state=view.state.without(uid))


def _demands(known: Sequence[Holding], previous: KubeletView | None) -> dict[str, tuple[PodRequest, PodDemand]]:
    old = previous.demands if previous is not None else {}
    made = {}
    for held in known:
        if held.request is not None:
            uid = held.pod.uid
            kept = old.get(uid)
            made[uid] = kept if kept and kept[0] is held.request else (held.request, pod_demand(held.request))
    return made


def _problem(topology: Topology) -> str:
    if topology.problem:
        return topology.problem
    if not topology.zones:
        return "no NUMA nodes are published"
    if len(topology.zones) > MOST_NUMA:
        return f"{len(topology.zones)} NUMA nodes are published, more than a kubelet can align"
    if topology.kubelet.topology_policy is None:
        return "the topology manager policy is not published"
    return ""


def _without(
    zones: Sequence[Zone], hidden: Sequence[Holding], demands: Mapping[str, tuple[PodRequest, PodDemand]]
) -> tuple[Zone, ...]:
    somewhere: list[Amounts] = []
    held: dict[int, list[Amounts]] = {}
    for holding in hidden:
        for numa, amounts in holding.numa:
            held.setdefault(numa, []).append(amounts)
        if not holding.numa and holding.pod.uid in demands:
            somewhere.append(_all_of(demands[holding.pod.uid][1]))
    if not hidden:
        return tuple(zones)
    return tuple(
        replace(zone, available=_less(zone.available, total([*held.get(zone.numa, ()), *somewhere]))) for zone in zones
    )


def _all_of(demand: PodDemand) -> dict[str, int]:
    """The most that a pod may hold: CPUs of all its containers, memory and devices of those that run at once."""
    cpus = sum(part.cpus for _, part in demand.containers) * MILLI
    return {CPU: cpus, **(demand.pod.memory or {}), **demand.pod.devices}


def _less(available: Amounts, amounts: Amounts) -> dict[str, int]:
    return {name: amount - amounts.get(name, 0) for name, amount in available.items()}
