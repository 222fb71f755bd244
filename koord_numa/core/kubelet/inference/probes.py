"""
The states in which a pod must be admitted for a yes: every hypothesis, each way in which it may be otherwise, with pods that may have left.

Theory. For a pod whose containers need nothing of one another, more room never turns a yes into a no: every unit keeps a NUMA node set that
fits, and one that is at least as narrow. So the states with the least room decide. An init container with CPUs or devices of its own breaks
that: the kubelet puts it on the lowest NUMA node with room, later containers must include that NUMA node while they have not taken its
share over (generateCPUTopologyHints, generateDeviceTopologyHints), and a NUMA node that becomes free below may hold the init container
and not the rest. So do several kinds of resources in containers that are aligned one by one: the first may move for a device and take CPUs
that its new NUMA node alone had. For such pods any number of pods that
run may have left, unseen (``more_room``).
More room for pods that are on their way may be less for any pod that comes after them (``unseen_departures``).

Example: two NUMA nodes of 16 CPUs; NUMA node 0 is full, a pod there holds 4. ``init 4, app 10`` fits on NUMA node 1. Should the pod of 4
have left, the init container goes to NUMA node 0, the app needs 10 CPUs around it, and under single-numa-node the pod is refused.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, Signature, pins_init_cpus, released
from koord_numa.core.kubelet.inference.unlocated import TooManyWays, without
from koord_numa.core.kubelet.inference.variants import one_of_each_kind, variants
from koord_numa.core.kubelet.inference.wanted_room import kinds_of
from koord_numa.core.kubelet.managers.admit import Trust
from koord_numa.core.kubelet.managers.aggregates import PodDemand, pod_demand
from koord_numa.core.kubelet.managers.cpus import CpuReuse
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState, free_on
from koord_numa.core.kubelet.managers.results import Grant
from koord_numa.core.kubelet.managers.room import everything, has_room
from koord_numa.core.kubelet.more_room import MoreRoom
from koord_numa.core.kubelet.sharing.choices import shared_in_all_ways
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MILLI, total
from koord_numa.core.value_objects import value_object

STRICT: Final = (KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED)

MOST_PROBES: Final = 500
"""So many states may be asked for one pod, about 30 ms: all decisions wait for it. Where there are more, the pod waits."""


@value_object
class Probe:
    """One state to be asked, in one order of taking over init containers' CPUs. ``options`` is what its hypothesis assumes."""

    state: KubeletState
    trust: Trust
    reuse: CpuReuse
    options: tuple[str, ...] = ()


def probes(request: PodRequest, view: KubeletView) -> Iterator[Probe]:
    """The likeliest state first. Raises ``TooManyWays``."""
    demand, node = pod_demand(request), view.state.node
    orders = (CpuReuse.LEAST, CpuReuse.MOST) if pins_init_cpus(demand, node) else (CpuReuse.BY_ID,)
    # ``rooms`` has one state for each way in which room is left: the others answer alike.
    for one in view.rooms or view.hypotheses:
        for variant in variants(one):
            yield from _each_way(variant, demand, orders)
    if node.ids_are_real:
        return  # so is the state
    confined = is_confined(demand, node)
    for one in _with_pods_away(request, view, orders, confined=confined):
        yield from _each_way(one, demand, orders)
    if confined and view.upper is not None:
        for order in orders:
            yield Probe(view.upper.state, Trust.INFERRED, order)
    if view.on_their_way is not None and view.on_their_way.matters_to(request):
        for one in view.on_their_way.states():
            yield from _each_way(replace(one, state=replace(one.state, requested=view.state.requested)), demand, orders)


def _each_way(one: Hypothesis, demand: PodDemand, orders: Iterable[CpuReuse]) -> Iterator[Probe]:
    for laid in shared_in_all_ways(one, demand) if one.sharing else (one,):
        for order in orders:
            yield Probe(laid.state, one.trust, order, one.options)


def asked(request: PodRequest, view: KubeletView) -> Iterator[Probe | None]:
    """The states to be asked; ``None`` at the end where there are too many."""
    try:
        for number, probe in enumerate(probes(request, view)):
            yield probe if number < MOST_PROBES else None
    except TooManyWays:
        yield None


def is_confined(demand: PodDemand, node: KubeletNode) -> bool:
    # Without alignment, or with one hint for the whole pod, no container is tied to another's NUMA node.
    """Does an init container tie later containers to the NUMA node that it gets? Only where containers are aligned one by one."""
    config = node.config
    if config.topology_policy in (None, KubeletPolicy.NONE) or config.topology_scope is not KubeletScope.CONTAINER:
        return False
    if len(demand.containers) < 2:
        return False
    held = False
    for container, part in demand.containers:
        own = (part.cpus and node.pins_cpus) or any(
            name in node.devices for name, count in part.devices.items() if count
        )
        if held and own:
            return True
        held = held or (bool(own) and container.kind is ContainerKind.INIT)
    return False


def takes_turns(demand: PodDemand, node: KubeletNode) -> bool:
    """
    May more room for one container leave less for the next? Where they are aligned one by one and need several kinds of resources.

    With one kind the next finds on the NUMA node that the first leaves what it lacks on the other; with several the first may move for a
    device, say, and take CPUs that only its new NUMA node had. Best-effort admits what it cannot align.
    """
    config = node.config
    if len(demand.containers) < 2:
        return False
    if config.topology_scope is not KubeletScope.CONTAINER or config.topology_policy not in STRICT:
        return False
    units = [kinds for _, part in demand.containers if (kinds := kinds_of(part, node))]
    taken = [kind for kinds in units for kind in kinds]
    return len(set(taken)) > 1 and len(set(taken)) < len(taken)


def _with_pods_away(
    request: PodRequest, view: KubeletView, orders: Sequence[CpuReuse], *, confined: bool
) -> Iterator[Hypothesis]:
    """What is left where pods may have gone, for a pod to which that matters: whichever pods left, equal room answers alike."""
    demand = pod_demand(request)
    by_turns = takes_turns(demand, view.state.node)
    several = MoreRoom(request, orders)
    known: set[Signature] = set()
    for one in view.hypotheses:
        if not (one.leaving or one.unlocated or one.state.pods):
            continue  # no pod of it is known, so none can go
        # What fits one NUMA node as a whole needs nothing of any other.
        matters = confined or (by_turns and not _fits_one_numa(one, request))
        more = _with_more_room(one) if matters else _without_leaving(one, demand)
        # Best-effort admits what it cannot align.
        tied = confined and one.state.node.config.topology_policy in STRICT
        for after in chain(more, several.states(one) if tied else ()):
            if (room := after.room) not in known:
                known.add(room)
                yield replace(after, state=replace(after.state, requested=one.state.requested))


def _fits_one_numa(one: Hypothesis, request: PodRequest) -> bool:
    if one.spread or one.sharing.keys() & everything(request).devices.keys():
        return False  # where CPUs or shared devices are is not known
    return has_room(request, one.state.node, one.state.managers)


def _with_more_room(one: Hypothesis) -> Iterator[Hypothesis]:
    """Each pod away in turn that holds anything: it may have left, unseen, from wherever it was. Pods of one kind leave the same."""
    for each in without(one, one.leaving):
        yield each
        tried: list[PodRequest] = []
        for uid, request in each.unlocated.items():
            if request not in tried:
                tried.append(request)
                yield from without(each, [uid])
        holding = (
            uid
            for uid, pod in each.state.pods.items()
            if any(given.cpus or given.devices or given.memory for given in pod.grant.containers)
        )
        for uid in one_of_each_kind(each, holding):
            yield released(each, uid)


def _without_leaving(one: Hypothesis, demand: PodDemand) -> Iterator[Hypothesis]:
    """Where several containers are aligned one by one, more room for one of them may leave less for the next."""
    node = one.state.node
    if not (one.leaving and node.aligns and node.config.topology_scope is KubeletScope.CONTAINER):
        return iter(())
    parts = sum(1 for _, part in demand.containers if part.cpus or part.memory or part.devices)
    return without(one, one.leaving) if parts > 1 else iter(())


def lower_places(demand: PodDemand, grant: Grant, state: KubeletState) -> list[int]:
    """
    The NUMA nodes on which the first init container of this grant might be, and the rest not beside it, if pods have left.

    They are those below its own that could hold it if they were empty. Its own is one of them where later containers are foreseen
    elsewhere: with more room there they may take CPUs that it did not have, and those that it keeps tie the next container to it. None
    under best-effort, which admits what it cannot align.
    """
    node = state.node
    # As best-effort admits whatever hint wins, an init container elsewhere costs alignment and not the pod.
    if node.config.topology_policy is KubeletPolicy.BEST_EFFORT:
        return []
    whole = KubeletState.empty(node)
    for at, ((container, part), given) in enumerate(zip(demand.containers, grant.containers, strict=True)):
        if container.kind is not ContainerKind.INIT or not (given.cpus or given.devices):
            # The first init container with something of its own ties the rest.
            continue
        if given.hint is None or given.hint.mask is None:
            return []
        wanted = {
            CPU: part.cpus * MILLI,
            **{name: count for name, count in part.devices.items() if name in node.devices},
        }
        makes_do, own = _makes_do(demand, at, node), members(given.hint.mask)[0]
        if not makes_do and any(one.cpus and one.hint != given.hint for one in grant.containers[at:]):
            return [own]
        below = [numa for numa in node.machine.numa_ids if numa < own]
        rooms = {numa: free_on(node, whole.managers, numa) for numa in below}
        return [
            numa
            for numa, room in rooms.items()
            if all(room.get(name, 0) >= amount for name, amount in wanted.items())
            and not (makes_do and _has_memory(demand, state, numa))
        ]
    return []


def _makes_do(demand: PodDemand, at: int, node: KubeletNode) -> bool:
    """
    Do the containers after this init container need no more CPUs than it leaves them, and no devices?

    Then they fit wherever it is: a container that takes others than those leaves these to the next one.
    """
    left = demand.containers[at][1].cpus
    for container, part in demand.containers[at + 1 :]:
        if part.cpus > left:
            return False
        left -= part.cpus if container.kind is not ContainerKind.INIT else 0
    return not any(
        name in node.devices for _, part in demand.containers for name, count in part.devices.items() if count
    )


def _has_memory(demand: PodDemand, state: KubeletState, numa: int) -> bool:
    """Is the memory of all containers surely free there? Groups of NUMA nodes are not looked into."""
    memory = state.managers.memory
    if memory is None:
        return True
    if state.node.config.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    wanted = total(part.memory for _, part in demand.containers if part.memory)
    return all(memory.free[numa].get(kind, 0) >= amount for kind, amount in wanted.items())
