"""
Topology spread constraints (kube-scheduler's PodTopologySpread): keep matching pods even over domains.

As with affinity, pods are counted once per decision and nodes are checked by look-ups.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from koord_numa.core.constraints import SpreadConstraint
from koord_numa.core.fit.node_affinity import matches_node
from koord_numa.core.fit.taints import fits_taints
from koord_numa.core.node import Node
from koord_numa.core.request import Pod, PodRequest
from koord_numa.core.selectors import selects
from koord_numa.core.verdicts import Reason, Rejection


@dataclass(frozen=True, slots=True)
class SpreadView:
    """Per constraint (by its position in the request): matching pods by value of its topology label."""

    counts: Mapping[int, Counter[str]] = field(default_factory=dict)

    def lowest(self, index: int, constraint: SpreadConstraint) -> int:
        """The fewest matching pods of any domain; 0 while there are fewer domains than ``minDomains``."""
        domains = self.counts[index]
        if len(domains) < constraint.min_domains:
            return 0
        return min(domains.values(), default=0)


def spread_view(request: PodRequest, nodes: Iterable[Node], placed: Iterable[tuple[Node, Pod]]) -> SpreadView:
    """
    Count matching pods per domain.

    Domains are those of the nodes that carry every hard constraint's label and pass the constraint's inclusion policies.
    """
    constraints = request.constraints.spread
    counts: dict[int, Counter[str]] = {index: Counter() for index in range(len(constraints))}
    for node in nodes:
        for index, constraint in enumerate(constraints):
            if _counts_here(request, node, constraint):
                counts[index][node.labels[constraint.topology_key]] += 0
    for node, pod in placed:
        if pod.key.namespace != request.namespace or pod.deleting:
            continue
        labels = dict(pod.labels)
        for index, constraint in enumerate(constraints):
            if selects(constraint.selector, labels) and _counts_here(request, node, constraint):
                counts[index][node.labels[constraint.topology_key]] += 1
    return SpreadView(counts)


def fits_spread(request: PodRequest, node: Node, view: SpreadView) -> Rejection | None:
    """Would the pod keep every hard constraint's skew?"""
    for index, constraint in enumerate(request.constraints.spread):
        if not constraint.hard:
            continue
        value = node.labels.get(constraint.topology_key)
        if value is None:
            return Rejection(
                Reason.SPREAD,
                "node(s) didn't match pod topology spread constraints (missing required label)",
                f"the node has no label {constraint.topology_key}",
                resolvable=False,
            )
        own = selects(constraint.selector, dict(request.labels))
        skew = view.counts[index][value] + own - view.lowest(index, constraint)
        if skew > constraint.max_skew:
            detail = (
                f"{constraint.topology_key}={value} would be {skew} above the lowest, {constraint.max_skew} allowed"
            )
            return Rejection(Reason.SPREAD, "node(s) didn't match pod topology spread constraints", detail)
    return None


def crowding(request: PodRequest, node: Node, view: SpreadView) -> int:
    """How many matching pods share this node's domains, over all soft constraints: fewer is better."""
    return sum(
        view.counts[index][node.labels[constraint.topology_key]]
        for index, constraint in enumerate(request.constraints.spread)
        if not constraint.hard and constraint.topology_key in node.labels
    )


def _counts_here(request: PodRequest, node: Node, constraint: SpreadConstraint) -> bool:
    needed = [c.topology_key for c in request.constraints.spread if c.hard == constraint.hard]
    if any(key not in node.labels for key in needed):
        return False
    if constraint.honor_affinity and not matches_node(request, node):
        return False
    return not constraint.honor_taints or fits_taints(request, node) is None
