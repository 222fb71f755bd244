"""
What a published topology says of hypotheses that agree with it: on which NUMA nodes the CPUs are that may be of several.

It shows what running containers use, and nothing of what finished init containers may still hold: that stays open.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from koord_numa.core.bit_sets import lowest, members
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.inference.socket_cpus import is_located, packs_sockets
from koord_numa.core.kubelet.inference.variants import distinct, elsewhere, freed, holding
from koord_numa.core.kubelet.reports.report import agrees, in_use, use_of
from koord_numa.core.kubelet.room import STRICT
from koord_numa.core.kubelet.spreading.places import may_lie_otherwise
from koord_numa.core.kubelet.state import ContainerGrant, ManagerState
from koord_numa.core.numa.hints import mask_of
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.value_objects import replace


def agreeing(states: Iterable[Hypothesis], shown: Collection[str], zones: Sequence[Zone]) -> list[Hypothesis]:
    """Those of these states that agree, each once, with what the topology tells of spread CPUs."""
    return distinct(settled(one, shown, zones) for one in states if agrees(one, shown, zones))


def settled(one: Hypothesis, shown: Collection[str], zones: Sequence[Zone]) -> Hypothesis:
    """
    The hypothesis with spread CPUs on the NUMA nodes where the topology shows them.

    What several spread pods hold on one NUMA node is known in sum only; which of them holds it is taken in their order.
    """
    open_ = one.spread | one.mixed
    loose = [uid for uid in sorted(open_) if uid in shown and uid in one.state.pods]
    # A shown pod that left and whose CPUs may lie elsewhere has an unknown part in the counts, so nothing can be settled.
    if not loose or any(uid in open_ for uid in shown if uid not in one.state.pods):
        return one
    if one.unlocated and not one.state.node.aligns:
        return one  # of unlocated pods only the sum over all NUMA nodes is known
    use = use_of(replace(one, spread=frozenset(loose), mixed=frozenset()), shown)
    if use is None or use.partly:
        return one
    due = {zone.numa: in_use(zone).get(CPU, 0) // MILLI - use.cpus.get(zone.numa, 0) for zone in zones}
    held = 0
    # CPUs of init containers are not shown, so that they must not be dealt out to fit what is.
    for uid in loose:
        for container in filter(_is_dealt, one.state.pods[uid].grant.containers):
            held |= container.cpus.bits
    # What is left for them must be just what they hold: on nodes that do not align, the places of all others are open, too.
    if sum(due.values()) != held.bit_count() or any(count < 0 for count in due.values()):
        return one
    roomy = _with_room(one, due, held)
    # More shown than there are CPUs: another pod's place is wrong too, and a later topology has to tell.
    return one if roomy is None else _settled(roomy, loose, due, held)


def _settled(one: Hypothesis, loose: Sequence[str], due: Mapping[int, int], held: int) -> Hypothesis:
    """With so many CPUs of each NUMA node held by these pods instead of the CPUs that they hold by the hypothesis."""
    node = one.state.node
    pool = one.state.managers.cpus | held
    chosen = 0
    for numa, count in due.items():
        here = pool & node.machine.numa_bits[numa]
        # CPUs that the pods hold already are kept where they can be, so that equal hypotheses stay equal.
        kept = lowest(held & here, min(count, (held & here).bit_count()))
        chosen |= kept | lowest(here & ~kept, count - kept.bit_count())
    # One pod, or one NUMA node, leaves no choice which pod holds which CPUs.
    certain = len(loose) == 1 or sum(1 for count in due.values() if count) == 1
    left_open = frozenset(uid for uid in loose if _holds_otherwise(one, uid))
    dealt = _dealt(one, loose, chosen, pool & ~chosen)
    if packs_sockets(node):
        dealt = _narrowed(dealt, loose, mask_of(numa for numa, count in due.items() if count))
    mixed = left_open if certain else frozenset(loose)
    spread = one.spread.difference(loose) | left_open
    return replace(_held_by_init(dealt, one, loose), spread=spread, mixed=mixed)


def _is_dealt(one: ContainerGrant) -> bool:
    """Does only a topology tell where its CPUs are?"""
    return one.kind is not ContainerKind.INIT and not is_located(one)


def _with_room(one: Hypothesis, due: Mapping[int, int], held: int) -> Hypothesis | None:
    """
    The hypothesis with so many CPUs of each NUMA node free or ``held``, ``None`` where that cannot be.

    Loose CPUs that are missing for that are free: all that are loose on a NUMA node, or none, as else it is open whose they are.
    """
    for numa, count in due.items():
        here = one.state.node.machine.numa_bits[numa]
        short = count - ((one.state.managers.cpus | held) & here).bit_count()
        if short <= 0:
            continue
        known = _known_loose(one) & here
        if known.bit_count() != short:
            return None
        one = freed(one, known)
    return one


def _known_loose(one: Hypothesis) -> int:
    """The loose CPUs that are on just these NUMA nodes if they are held."""
    known = 0
    for uid, bits in one.loose.items():
        pod = one.state.pods.get(uid)
        holders = [each for each in pod.grant.containers if each.cpus.bits & bits] if pod is not None else []
        if holders and not any(may_lie_otherwise(each, one.state.node) for each in holders):
            known |= bits
    return known


def _holds_otherwise(one: Hypothesis, uid: str) -> bool:
    """May init containers of the pod hold CPUs of other NUMA nodes than here? No topology tells."""
    # Best-effort has ``_held_by_init`` for it.
    if one.state.node.config.topology_policy not in STRICT:
        return False
    containers = one.state.pods[uid].grant.containers
    lasting = 0
    for each in containers:
        lasting |= each.cpus.bits if each.kind is not ContainerKind.INIT else 0
    return any(
        each.kind is ContainerKind.INIT and each.cpus.bits & ~lasting and may_lie_otherwise(each, one.state.node)
        for each in containers
    )


def _held_by_init(dealt: Hypothesis, one: Hypothesis, loose: Sequence[str]) -> Hypothesis:
    """
    Where a hint may be narrower than what is taken, init containers may still hold what later ones turn out to have elsewhere.

    Strict policies admit no such hint. Without any all containers of a pod choose from the same CPUs, so that how many a later one has
    again follows from that alone (``cpu_manager.py``), and those are elsewhere together.
    """
    node = one.state.node
    for uid in loose if node.aligns and node.config.topology_policy not in STRICT else ():
        for each in one.state.pods[uid].grant.containers:
            if each.kind is ContainerKind.INIT:
                dealt = holding(dealt, {uid: bits}) if (bits := each.cpus.bits & dealt.state.managers.cpus) else dealt
    return dealt


def _dealt(one: Hypothesis, loose: Sequence[str], chosen: int, free: int) -> Hypothesis:
    pods = dict(one.state.pods)
    for uid in loose:
        containers = []
        place_of: dict[int, int] = {}
        for container in pods[uid].grant.containers:
            if _is_dealt(container) and container.cpus:
                bits = container.cpus.bits
                own = chosen & bits
                more = lowest(chosen & ~own, len(container.cpus) - own.bit_count())
                chosen &= ~(own | more)
                place_of.update(zip(members(bits & ~own), members(more), strict=True))
                container = replace(container, cpus=CpuSet(own | more))
            containers.append(container)
        # CPUs that a later container has of an init container's are the same ones wherever they turn out to be.
        with_init = tuple(elsewhere(each, place_of) if each.kind is ContainerKind.INIT else each for each in containers)
        pods[uid] = replace(pods[uid], grant=replace(pods[uid].grant, containers=with_init))
    managers = one.state.managers
    state = replace(one.state, pods=pods, managers=ManagerState(free, managers.devices, managers.memory))
    return replace(one, state=state)


def _narrowed(one: Hypothesis, loose: Sequence[str], shown: int) -> Hypothesis:
    """With CPUs of these pods on no other NUMA nodes than those of which the topology shows that they have any."""
    pods = dict(one.state.pods)
    for uid in loose:
        containers = tuple(
            replace(each, numas=(each.numas or shown) & shown or each.numas) if _is_dealt(each) and each.cpus else each
            for each in pods[uid].grant.containers
        )
        pods[uid] = replace(pods[uid], grant=replace(pods[uid].grant, containers=containers))
    return replace(one, state=replace(one.state, pods=pods))
