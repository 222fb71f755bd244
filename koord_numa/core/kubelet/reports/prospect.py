"""
Can the pods that a topology shows and that are still to come make up what it shows beyond those that are there?

Theory. Under single-numa-node all that a container holds is of one NUMA node, under scope ``pod`` all that a pod holds. So what a zone
shows in use beyond the pods that have come is the sum of what some of the others ask for, and there are few such sums: a state from which
none of them is left to make up the difference does not lead on to the topology, long before the last of the pods has come.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.kubelet.demand import is_memory, pod_demand
from koord_numa.core.kubelet.inference.arrivals import Arrival
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.reports.report import Use, in_use, may_come_to, use_of
from koord_numa.core.kubelet.state import KubeletNode
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MILLI, ResourceList, total

MOST_SUMS: Final = 16_384
"""Of more sums none is looked at: almost every difference is one of so many."""

_LANE: Final = 64
"""Bits for the amount of one resource: amounts of several are one number, and one addition adds them all."""


@dataclass(slots=True)
class Prospect:
    """
    What may come of states before the last of the pods that a topology shows. ``shown`` are their uids, ``arrivals`` those that are
    replayed, in their order.
    """

    shown: Collection[str]
    zones: Sequence[Zone]
    arrivals: Iterable[Arrival]
    _order: list[Arrival] = field(init=False)
    _uids: list[str] = field(init=False)
    _sums: list[set[int]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._order = [each for each in self.arrivals if each.uid in self.shown]
        self._uids = [each.uid for each in self._order]

    def may_come(self, one: Hypothesis) -> bool:
        """Can the topology be of a later moment, when all the pods that it shows have come?"""
        if any(uid in one.gone for uid in self.shown):
            return False  # shown together with pods that came after it had left
        return may_come_to(one, self.shown, self.zones) and self._is_made_up(one)

    def _is_made_up(self, one: Hypothesis) -> bool:
        """Do sums of what pods ask for that are still to come make up the rest of every zone, as far as that is known?"""
        node = one.state.node
        if one.spread or one.mixed or one.unplaced or one.unlocated or not _on_one_numa_node(node):
            return True
        there = [uid for uid in self.shown if uid in one.state.pods]
        ahead = [uid for uid in self._uids if uid not in one.state.pods]
        # Of pods that came before all arrivals, and of one that is refused here, this tells nothing.
        if len(there) + len(ahead) < len(self.shown) or ahead != self._uids[len(self._uids) - len(ahead) :]:
            return True
        sums, use = self._sums_of_last(len(ahead), node), use_of(one, there)
        return sums is None or use is None or all(self._rest(zone, use, node) in sums for zone in self.zones)

    def _rest(self, zone: Zone, use: Use, node: KubeletNode) -> int:
        """What a zone shows beyond what the pods use that are there."""
        rest = in_use(zone)
        rest[CPU] = rest.get(CPU, 0) - use.cpus.get(zone.numa, 0) * MILLI
        for (numa, kind), amount in use.memory.items():
            if numa == zone.numa:
                rest[kind] = rest.get(kind, 0) - amount
        return _as_number(rest, self._kinds(node))

    def _kinds(self, node: KubeletNode) -> list[str]:
        """The resources of which topologies say which NUMA node they are of."""
        kinds = {kind for zone in self.zones for kind in zone.allocatable if kind == CPU or is_memory(kind)}
        return sorted(kind for kind in kinds if (node.pins_cpus if kind == CPU else node.pins_memory))

    def _sums_of_last(self, count: int, node: KubeletNode) -> set[int] | None:
        """What any of the last ``count`` pods ask for together; ``None`` where there are too many sums."""
        if not self._sums:
            kinds, sums = self._kinds(node), {0}
            self._sums.append(sums)
            for each in reversed(self._order):
                sums = set(sums)
                for amounts in _units(each.request, node):
                    number = _as_number(amounts, kinds)
                    sums |= {other + number for other in sums}
                if len(sums) > MOST_SUMS:
                    break
                self._sums.append(sums)
        return self._sums[count] if count < len(self._sums) else None


def _on_one_numa_node(node: KubeletNode) -> bool:
    strict = node.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE
    return strict and not node.static_options.align_by_socket


def _as_number(amounts: ResourceList, kinds: Sequence[str]) -> int:
    return sum(amounts.get(kind, 0) << _LANE * at for at, kind in enumerate(kinds))


def _units(request: PodRequest, node: KubeletNode) -> Iterator[ResourceList]:
    """What has to be of one NUMA node, as topologies show it: without finished init containers."""
    lasting = [
        {CPU: part.cpus * MILLI, **(part.memory or {})}
        for container, part in pod_demand(request).containers
        if container.kind is not ContainerKind.INIT
    ]
    yield from [total(lasting)] if node.config.topology_scope is KubeletScope.POD else lasting
