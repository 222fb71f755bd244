"""
What the kubelet is foreseen to decide on one pod in many states: those that the pod cannot tell apart are asked once.

Theory. Which pods have left differs from state to state, and mostly not where the pod looks. ``Sight`` names what it can see of the room; a
dry run compares nothing else with what the pod asks for but its state's node, how far the state is trusted and whether the node as a whole
has room, which is the same for all of the pod's containers. So the managers merge the same hints, which are all that places the pod:

- A container that is kept to one NUMA node gets all of it there. How much more is free beyond all that the pod asks for is cut off.
- One that gets several takes CPUs by how many are free on each, which is told apart to the CPU. Memory is drained from the lowest NUMA node
  on, no more than is asked for. Of devices near one NUMA node each that strict policies give, the numbers are told apart, else the order.

What decides beside that is not asked here: made-up CPUs that sockets are packed with (``sharing/socket_cpus.py`` goes by what may be free),
CPUs with ids of their own, and devices of which it is open what they are near. Where a container's CPUs may lie on several NUMA nodes, its
hint and the CPUs beyond it tell which these are (``spreading/places.py``), and both follow from the numbers.

Example: a pod of 4 CPUs is on its way, and 30 pods run, of which 20 are on NUMA nodes that have these CPUs free anyway. Whichever of the 20
has left, the pod sees the same.
"""

from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.demand import check_node_fit
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, Signature
from koord_numa.core.kubelet.inference.replay import Effort, Outcome, foreseen
from koord_numa.core.kubelet.sharing.socket_cpus import packs_sockets
from koord_numa.core.kubelet.state import Grant, KubeletNode
from koord_numa.core.kubelet.visible_room import Sight
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.pod_resources import effective_requests

MANY: Final = 1 << 30
"""More NUMA nodes than there are."""

AS_ONE: Final = 4
"""So many states that are recognised cost no more time than one dry run, with what it takes to make them."""


class Asked:
    """One pod that is asked about."""

    def __init__(self, request: PodRequest) -> None:
        self._request = request
        self._sights: dict[
            int, tuple[KubeletNode, Sight]
        ] = {}  # by id of the node, which is kept, so that no other one gets it
        self._known: dict[Signature, tuple[Outcome, Grant | None]] = {}
        self._recognised = 0

    def foreseen(self, one: Hypothesis, effort: Effort) -> tuple[Outcome, Grant | None]:
        """
        As ``replay.foreseen``: where the pod comes to, with a grant of equal hints. What it takes is taken off ``effort``.
        """
        key = self._key(one)
        known = None if key is None else self._known.get(key)
        if known is not None:
            self._recognised += 1
            effort.left -= not self._recognised % AS_ONE
            return known
        effort.left -= 1
        found = foreseen(one, self._request)
        if key is not None:
            self._known[key] = found
        return found

    def _key(self, one: Hypothesis) -> Signature | None:
        """Equal for states in which the pod comes to the same NUMA nodes; ``None`` where nothing tells."""
        node = one.state.node
        if one.sharing or node.ids_are_real or packs_sockets(node):
            return None
        if id(node) not in self._sights:
            self._sights[id(node)] = node, Sight(self._request, node)
        _, sight = self._sights[id(node)]
        has_room = check_node_fit(effective_requests(self._request), one.state.requested, node.allocatable) is None
        return (id(node), one.trust, has_room, sight.of(one.state))


def highest_place(grant: Grant | None) -> int:
    """
    The NUMA node below which a departure must be to change this decision.

    A container takes the lowest NUMA node that fits: more room on that one or above changes nothing. Of other hints nothing is known.
    """
    highest = 0
    for one in () if grant is None else grant.containers:
        hint = one.hint
        if hint is None or not hint.preferred or hint.mask is None or hint.mask.bit_count() != 1:
            return MANY
        highest = max(highest, members(hint.mask)[0])
    return MANY if grant is None else highest
