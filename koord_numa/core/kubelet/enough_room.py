"""
Do amounts alone tell that a pod is admitted in every state that a hypothesis stands for? Then none of these has to be asked.

Of devices that may be near several NUMA nodes as few, or as many, are counted near each as there may be (``sharing/layouts.py``). CPUs that
may be dealt out otherwise are missing on each NUMA node. More room may be worse for init containers (``room.py``): where pods may
leave, NUMA nodes are taken to hold these that do so on the empty node.
"""

from collections.abc import Iterable

from koord_numa.core.kubelet.demand import ContainerDemand, pod_demand
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.inference.shared_devices import Counts, fewest_free
from koord_numa.core.kubelet.room import NOTHING, Bound, at_most, everything, has_room_between, together
from koord_numa.core.kubelet.state import KubeletNode, KubeletState, ManagerState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletScope
from koord_numa.core.value_objects import replace


def has_room_in_all_ways(request: PodRequest, one: Hypothesis) -> bool:
    """Whatever devices are near; CPUs are where they are."""
    least, most = _ends(request, one)
    return has_room_between(request, one.state.node, least, most)


def unclear_devices(request: PodRequest, states: Iterable[Hypothesis]) -> str:
    """Say which devices keep it open where the pod comes to, if it may be refused for that; else return an empty text."""
    for one in states:
        names = sorted(one.sharing.keys() & everything(request).devices.keys())
        if names and not _is_aligned_once(request, one.state.node) and not has_room_in_all_ways(request, one):
            return f"{', '.join(names)} may be near several NUMA nodes, and which ones is not published"
    return ""


def _is_aligned_once(request: PodRequest, node: KubeletNode) -> bool:
    """Return whether one hint decides for the whole pod, so that asking about each NUMA node is enough."""
    if node.config.topology_scope is KubeletScope.POD:
        return True
    return sum(1 for _, part in pod_demand(request).containers if part.cpus or part.memory or part.devices) == 1


def has_room_whoever_leaves(request: PodRequest, one: Hypothesis, coming: ContainerDemand = NOTHING) -> bool:
    """Whatever devices are near, wherever CPUs are, whichever pods leave, and with ``coming`` taken from any NUMA nodes."""
    node = one.state.node
    least, _ = _ends(request, one)
    moving = sum(len(given.cpus) for uid in one.spread for given in one.state.pods[uid].grant.containers)
    kept = together([coming, ContainerDemand(cpus=moving, memory=None, devices={})])
    all_there = {name: one.sharing[name].counts for name in least.devices}
    most = Bound(KubeletState.empty(node).managers, all_there)
    return has_room_between(request, node, least, most, kept)


def most_room(request: PodRequest, one: Hypothesis) -> Bound:
    """The most that may be free for the pod, whatever devices are near; CPUs that init containers may hold are free."""
    _, most = _ends(request, one)
    loose = 0
    for bits in one.loose.values():
        loose |= bits
    managers = most.managers
    return replace(most, managers=ManagerState(managers.cpus | loose, managers.devices, managers.memory))


def _ends(request: PodRequest, one: Hypothesis) -> tuple[Bound, Bound]:
    fewest: dict[str, Counts] = {}
    most: dict[str, Counts] = {}
    for name in one.sharing.keys() & at_most(request).devices.keys():
        most[name] = one.sharing[name].counts
        fewest[name] = fewest_free(one.sharing[name], one.state.managers.devices[name].bit_count())
    return Bound(one.state.managers, fewest), Bound(one.state.managers, most)
