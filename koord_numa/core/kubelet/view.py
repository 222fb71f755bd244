"""
What a scheduler can see of one kubelet-owned node: published zones, the Node object, and the pods known to be there.

Gathers facts once per change of the node; ``admission.py`` decides on them. What nobody published is assumed here, carefully, and said.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from koord_numa.core.kubelet.admit import admit
from koord_numa.core.kubelet.aggregates import PodDemand, pod_demand
from koord_numa.core.kubelet.cores import ARCHITECTURE, NO_RULE, WholeCores, whole_cores
from koord_numa.core.kubelet.inferred_state import Published, infer_state
from koord_numa.core.kubelet.init_reuse import without_leftovers
from koord_numa.core.kubelet.manager_state import KubeletState
from koord_numa.core.kubelet.node_config import NodeConfig
from koord_numa.core.kubelet.unreported_pods import without_hidden
from koord_numa.core.ledger import Holding, Ledger
from koord_numa.core.node import Node, NodeResourceTopology, Zone
from koord_numa.core.request import PodRequest
from koord_numa.core.resources import PODS, total

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
    where memory is in use. ``problem`` is non-empty when nothing may be placed that the kubelet would align. ``frame`` is what the
    objects say, ``None`` where nobody publishes any, and ``zones`` what is published less what is known to be gone from it.
    """

    node: str
    state: KubeletState
    knowledge: Knowledge
    cores: WholeCores = NO_RULE
    groups_known: bool = True
    problem: str = ""
    frame: NodeConfig | None = None
    zones: tuple[Zone, ...] = ()

    @property
    def topology(self) -> NodeResourceTopology | None:
        """The published topology, with the zones of this view; ``None`` where nobody publishes any."""
        return None if self.frame is None else replace(self.frame.topology, zones=self.zones)


def kubelet_view(
    node: Node,
    topology: NodeResourceTopology,
    holdings: Iterable[Holding],
    unpublished: Collection[str] = (),
    previous: KubeletView | None = None,
) -> KubeletView:
    """
    Gather what is known of one kubelet-owned node from what exporters publish.

    ``unpublished`` are the uids of pods that ``topology`` does not show yet: placed by us, or seen bound, since it was made. What they hold
    is missing on every NUMA node where they may be. The other pods' use is in the zones' available amounts already. A ledger, which has
    added everything up, and ``previous`` save work only.
    """
    there = holdings if isinstance(holdings, Ledger) else list(holdings)
    hidden: list[Holding] = []
    shown: list[PodDemand] = []
    known: list[PodDemand] = []
    for held in there:
        demand = pod_demand(held.request) if held.request is not None else None
        if demand is not None:
            known.append(demand)
        if held.pod.uid in unpublished:
            hidden.append(held)
        elif demand is not None:
            shown.append(demand)
    frame = _frame(node, topology, previous)
    zones = without_hidden(without_leftovers(topology.zones, shown), hidden, topology, frame.places)
    guess = infer_state(
        Published(
            frame=frame,
            zones=zones,
            requested=_requested(there),
            pods=known,
        )
    )
    return KubeletView(
        node=node.name,
        state=guess.state,
        knowledge=Knowledge.PUBLISHED,
        cores=_cores(node, topology, zones, shown) if guess.state.node.pins_cpus else NO_RULE,
        groups_known=guess.groups_known,
        problem=_problem(topology),
        frame=frame,
        zones=zones,
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


def _requested(holdings: Ledger | list[Holding]) -> dict[str, int]:
    amounts = holdings.amounts if isinstance(holdings, Ledger) else total(held.amounts for held in holdings)
    return {**amounts, PODS: len(holdings)}


def _frame(node: Node, topology: NodeResourceTopology, previous: KubeletView | None) -> NodeConfig:
    known = None if previous is None else previous.frame
    if known is None or not known.holds_for(topology, node.allocatable):
        return NodeConfig.of(topology, node.allocatable)
    return known if known.topology is topology else replace(known, topology=topology)


def _cores(node: Node, topology: NodeResourceTopology, zones: Sequence[Zone], shown: Iterable[PodDemand]) -> WholeCores:
    seen = {count for demand in shown for count in demand.counts}
    return whole_cores(topology.kubelet, zones, node.labels.get(ARCHITECTURE, ""), seen)


def _problem(topology: NodeResourceTopology) -> str:
    if topology.problem:
        return topology.problem
    if not topology.zones:
        return "no NUMA nodes are published"
    if len(topology.zones) > MOST_NUMA:
        return f"{len(topology.zones)} NUMA nodes are published, more than a kubelet can align"
    if topology.kubelet.topology_policy is None:
        return "the topology manager policy is not published"
    return ""
