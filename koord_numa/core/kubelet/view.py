"""
What a scheduler can see of one kubelet-owned node: published zones, the Node object, and the pods known to be there.

Gathers facts once per change of the node; ``admission.py`` decides on them. Nothing here guesses what nobody published.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from koord_numa.core.amounts import PODS, Amounts, subtract, total
from koord_numa.core.ledger import Holding
from koord_numa.core.node import KubeletConfig, Node, Topology, Zone


@dataclass(frozen=True, slots=True)
class KubeletView:
    """
    One node, ready for decisions. ``zones`` are ascending by NUMA id and already without what unpublished pods hold.

    ``requested`` sums the effective requests of all pods on the node, with their number as ``pods``.
    """

    node: str
    config: KubeletConfig
    zones: tuple[Zone, ...]
    allocatable: Amounts
    requested: Amounts = field(default_factory=dict)
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    holdings: tuple[Holding, ...] = ()  # oldest first


def kubelet_view(
    node: Node, topology: Topology, holdings: Iterable[Holding], unpublished: Collection[str] = ()
) -> KubeletView:
    """
    Gather what is known of one kubelet-owned node.

    ``unpublished`` are the uids of pods that ``topology`` does not show yet: placed by us or seen bound since it was made. What they hold per NUMA
    node is subtracted here; the other pods' use is in the zones' available amounts already.
    """
    known = tuple(sorted(holdings, key=lambda held: (held.created, held.pod.uid)))
    hidden: dict[int, dict[str, int]] = {}
    for held in known:
        if held.pod.uid in unpublished:
            for numa, amounts in held.numa:
                hidden[numa] = total((hidden.get(numa, {}), amounts))
    return KubeletView(
        node=node.name,
        config=topology.kubelet,
        zones=tuple(
            replace(zone, available=subtract(zone.available, _known_to(zone, hidden[zone.numa])))
            if zone.numa in hidden
            else zone
            for zone in topology.zones
        ),
        allocatable=node.allocatable,
        requested={**total(held.amounts for held in known), PODS: len(known)},
        distances=topology.distances,
        holdings=known,
    )


def _known_to(zone: Zone, amounts: Amounts) -> Amounts:
    return {name: amount for name, amount in amounts.items() if name in zone.available}
