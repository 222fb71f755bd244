"""
Comparison of candidate states (hypotheses) with a published topology: which candidates explain the topology, and what it shows about pods.

``agrees`` compares one candidate with one topology. ``settled`` moves CPUs with unknown NUMA nodes to where the topology shows them.
``UndatedTopology`` is a topology with several possible sets of pods. ``leads_to`` rejects candidates early during a replay.
``GivenUp`` records the candidates that a replay has dropped.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from operator import add
from typing import Final, Self

from koord_numa.core.cpuset import CpuSet, lowest, members
from koord_numa.core.kubelet.bounds import STRICT
from koord_numa.core.kubelet.demand import is_memory
from koord_numa.core.kubelet.hypothesis import Hypothesis, cpus_by_numa, may_lie_otherwise
from koord_numa.core.kubelet.node_config import is_located, packs_sockets
from koord_numa.core.kubelet.state import EVENT, ContainerGrant, Grant, KubeletNode, ManagerState
from koord_numa.core.kubelet.variants import Rest, departing, elsewhere, freed, holding, rest_of
from koord_numa.core.numa import mask_of
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field


class Use(MutableObject):
    """The amounts that shown pods use in a candidate state, per NUMA node. Only the sum of ``spread`` CPUs and of wider blocks is known."""

    cpus: dict[int, int]
    spread: int = 0
    memory: dict[tuple[int, str], int] = value_field(default_factory=dict)  # bytes of blocks on one NUMA node
    blocks: list[tuple[str, int, int]] = value_field(default_factory=list)  # (type, mask, bytes) of wider blocks
    devices: dict[tuple[int, str], int] = value_field(default_factory=dict)
    partly: bool = False  # whether the place of a shown pod is unknown


def agrees(one: Hypothesis, shown: Collection[str], zones: Sequence[Zone]) -> bool:
    """Return whether an exporter could have published these zones while exactly the ``shown`` pods ran, if the candidate is true."""
    use = cpus_of(one, shown)
    if use is None:
        return False
    node = one.state.node
    published = {zone.numa: in_use(zone) for zone in zones}
    # Most sets of pods differ in CPUs already. Memory and devices are counted only for the others.
    if node.pins_cpus and not _cpus_agree(use, published):
        return False
    _count_bound(use, one, shown)
    return (not node.pins_memory or _memory_agrees(use, zones)) and _devices_agree(use, node, published)


def may_come_to(one: Hypothesis, shown: Collection[str], zones: Sequence[Zone]) -> bool:
    """
    Return whether these zones can be published later, after more of the ``shown`` pods have come.

    The pods that are there already must not use more than the zones show.
    """
    use = use_of(one, [uid for uid in shown if uid in one.state.pods])
    if use is None:
        return True
    found = [((numa, CPU), count * MILLI) for numa, count in use.cpus.items()]
    # Where nothing is available, an exporter may have cut off the use beyond the allocatable amount.
    most = {
        (zone.numa, name): amount
        for zone in zones
        for name, amount in in_use(zone).items()
        if zone.available.get(name, 0) > 0
    }
    found += [*use.memory.items(), *use.devices.items()]
    return all(amount <= most.get(key, amount) for key, amount in found)


def may_explain(one: Hypothesis, shown: Sequence[Collection[str]], zones: Sequence[Zone]) -> bool:
    """
    Return whether the candidate explains the zones for one of these sets of pods.

    A set whose pods have all come is compared as by ``agrees``, any other set as by ``may_come_to``.
    """
    return any(
        (agrees if all(one.has(uid) or uid in one.gone for uid in pods) else may_come_to)(one, pods, zones)
        for pods in shown
    )


def in_use(zone: Zone) -> dict[str, int]:
    """Return the amounts that a zone shows in use."""
    # Allocatable less available: neither contains reserved amounts.
    return {name: amount - zone.available.get(name, 0) for name, amount in zone.allocatable.items()}


def _grant(one: Hypothesis, uid: str) -> Grant | None:
    pod = one.state.pods.get(uid)
    return pod.grant if pod is not None else one.gone.get(uid)


def use_of(one: Hypothesis, shown: Collection[str]) -> Use | None:
    """Return the amounts that these pods use in the candidate, or ``None`` if the candidate lacks one of the pods."""
    use = cpus_of(one, shown)
    if use is not None:
        _count_bound(use, one, shown)
    return use


def cpus_of(one: Hypothesis, shown: Collection[str]) -> Use | None:
    """Return ``use_of`` for CPUs alone."""
    node = one.state.node
    counts = [(0,) * len(node.machine.numa_bits)]
    use = Use({})
    # Without alignment CPUs come from any NUMA node. For unlocated pods only the sum over all NUMA nodes is known.
    in_sum = bool(one.unlocated) and not node.aligns
    for uid in shown:
        if uid in one.unlocated:
            continue
        grant = _grant(one, uid)
        if grant is None:
            if uid not in one.unplaced and uid not in one.gone:
                return None  # the kubelet did not admit it here
            use.partly = True
        elif in_sum or uid in one.spread or uid in one.mixed or _may_have_lain_otherwise(one, uid):
            for container in _running(grant):
                if in_sum or not is_located(container):
                    use.spread += len(container.cpus)
                else:
                    counts.append(cpus_by_numa(container.cpus.bits, node))
        else:
            counts.append(_running_cpus(grant, node))
    use.cpus = dict(zip(node.machine.numa_bits, map(sum, zip(*counts, strict=True)), strict=True))
    if one.unlocated:
        _count_unlocated(use, rest_of(one).cpus, node)
    return use


def _may_have_lain_otherwise(one: Hypothesis, uid: str) -> bool:
    """
    Return whether a removed pod may have had CPUs of several NUMA nodes in other numbers.

    Containers without a hint are excluded: their possible places are separate candidates.
    """
    grant = one.gone.get(uid)
    if grant is None or uid in one.state.pods:
        return False
    return any(each.hint is not None and may_lie_otherwise(each, one.state.node) for each in grant.containers)


def _count_unlocated(use: Use, cpus: int, node: KubeletNode) -> None:
    """Add the CPUs of unlocated pods: per NUMA node if the kubelet aligns, else in sum."""
    if not node.aligns:
        use.spread += cpus.bit_count()
        return
    for numa, here in node.machine.numa_bits.items():
        use.cpus[numa] += (cpus & here).bit_count()


def running_cpus(one: Hypothesis, uids: Collection[str]) -> dict[str, int]:
    """
    Return the number of CPUs that a topology shows for each of these pods, by uid.

    Pods that the state lacks are left out. The result is empty where the CPU manager is not static.
    """
    node = one.state.node
    found = ((uid, _grant(one, uid)) for uid in uids) if node.pins_cpus else ()
    return {uid: sum(_running_cpus(grant, node)) for uid, grant in found if grant is not None}


def _running(grant: Grant) -> Iterator[ContainerGrant]:
    # The pod resources API lists running containers only, so a topology does not contain finished init containers.
    return (container for container in grant.containers if container.kind is not ContainerKind.INIT)


def _running_cpus(grant: Grant, node: KubeletNode) -> tuple[int, ...]:
    """
    Return the number of CPUs per NUMA node that the running containers of a pod use. The result is cached in the
    grant, which belongs to one node.
    """
    if not grant.running:
        found = [0] * len(node.machine.numa_bits)
        for container in _running(grant):
            found = [*map(add, found, cpus_by_numa(container.cpus.bits, node))]
        # A cache like ``place`` on a frozen class: topologies are compared with many states that share grants.
        object.__setattr__(grant, "running", tuple(found))
    return grant.running


def _count_bound(use: Use, one: Hypothesis, shown: Collection[str]) -> None:
    """Add the memory and devices of the shown pods and of unlocated pods."""
    for uid in shown:
        grant = None if uid in one.unlocated else _grant(one, uid)
        for container in _running(grant) if grant is not None else ():
            _count(use, container, one.state.node)
    if one.unlocated:
        _count_rest(use, rest_of(one), one.state.node)


def _count_rest(use: Use, rest: Rest, node: KubeletNode) -> None:
    """Add the memory of unlocated pods, which is known for every group of NUMA nodes, and their devices."""
    for mask, kinds in rest.memory.items():
        for kind, amount in kinds.items():
            if mask.bit_count() == 1:
                key = members(mask)[0], kind
                use.memory[key] = use.memory.get(key, 0) + amount
            else:
                use.blocks.append((kind, mask, amount))
    for resource, bits in rest.devices.items():
        for at in members(bits):
            near = node.devices[resource].devices[at].near
            if near.bit_count() == 1:
                key = members(near)[0], resource
                use.devices[key] = use.devices.get(key, 0) + 1


def _count(use: Use, container: ContainerGrant, node: KubeletNode) -> None:
    for block in container.memory:
        if block.mask.bit_count() == 1:
            key = members(block.mask)[0], block.resource
            use.memory[key] = use.memory.get(key, 0) + block.amount
        else:
            use.blocks.append((block.resource, block.mask, block.amount))
    for resource, ids in container.devices.items():
        pool = node.devices[resource]
        for place in map(pool.places.__getitem__, ids):
            # Which devices are near several NUMA nodes is not known, so the counts of such devices are not compared.
            near = pool.masks[place]
            if near.bit_count() == 1:
                key = members(near)[0], resource
                use.devices[key] = use.devices.get(key, 0) + 1


def _cpus_agree(use: Use, published: Mapping[int, Mapping[str, int]]) -> bool:
    counts = {numa: amounts.get(CPU, 0) // MILLI for numa, amounts in published.items()}
    if use.partly or use.spread:
        # A pod with an unknown place may be on any NUMA node: the other pods are then a lower bound of the published
        # use.
        enough = all(counts.get(numa, 0) >= used for numa, used in use.cpus.items())
        return enough and (use.partly or sum(counts.values()) == sum(use.cpus.values()) + use.spread)
    return all(counts.get(numa, 0) == used for numa, used in use.cpus.items())


def _memory_agrees(use: Use, zones: Sequence[Zone]) -> bool:
    kinds = {kind for zone in zones for kind in zone.allocatable if is_memory(kind)}
    for kind in kinds:
        most = {zone.numa: zone.allocatable.get(kind, 0) for zone in zones}
        counts = {zone.numa: most[zone.numa] - zone.available.get(kind, 0) for zone in zones}
        alone = {numa: use.memory.get((numa, kind), 0) for numa in counts}
        # Blocks of zero bytes belong to a group, but do not change published amounts.
        blocks = [(mask, size) for resource, mask, size in use.blocks if resource == kind and size]
        if use.partly:
            if any(counts[numa] < alone[numa] for numa in counts):
                return False
        # The object does not name its exporter, so either way of counting is accepted.
        elif not (_in_full(counts, alone, blocks, most) or _filled_up(counts, alone, blocks)):
            return False
    return True


def _in_full(
    counts: Mapping[int, int],
    alone: Mapping[int, int],
    blocks: Sequence[tuple[int, int]],
    most: Mapping[int, int],
) -> bool:
    """Compare as resource-topology-exporter counts: the full size of a block on each of its NUMA nodes, at most the allocatable amount."""
    for numa, used in counts.items():
        due = alone[numa] + sum(size for mask, size in blocks if mask >> numa & 1)
        # ``available`` is never below 0, so only use beyond the allocatable amount is cut off.
        if used != min(due, max(alone[numa], most[numa])):
            return False
    return True


def _filled_up(counts: Mapping[int, int], alone: Mapping[int, int], blocks: Sequence[tuple[int, int]]) -> bool:
    """Compare as NFD counts: a block fills its NUMA nodes in turn, so only the sum over the NUMA nodes that blocks join is certain."""
    joined = 0
    for mask, _ in blocks:
        joined |= mask
    if any(used != alone[numa] for numa, used in counts.items() if not joined >> numa & 1):
        return False
    within = [numa for numa in counts if joined >> numa & 1]
    return sum(counts[numa] for numa in within) == sum(alone[numa] for numa in within) + sum(size for _, size in blocks)


def _devices_agree(use: Use, node: KubeletNode, published: Mapping[int, Mapping[str, int]]) -> bool:
    for resource, pool in node.devices.items():
        if pool.assumed:
            continue
        if not node.aligns:
            # Devices are allocated in the plugin's order, which is unknown. Only their number is compared.
            used = sum(amounts.get(resource, 0) for amounts in published.values())
            due = sum(count for (_, name), count in use.devices.items() if name == resource)
            if used < due or (used > due and not use.partly):
                return False
            continue
        for numa, amounts in published.items():
            used, due = amounts.get(resource, 0), use.devices.get((numa, resource), 0)
            if used < due or (used > due and not use.partly):
                return False
    return True


def agreeing_after(
    states: Iterable[Hypothesis], away: Collection[str], shown: Collection[str], zones: Sequence[Zone]
) -> Generator[Hypothesis | None, None, None]:
    """
    Yield the states without the pods ``away`` that agree with the topology, with spread CPUs settled.

    Yield ``None`` after a piece of work without a state.
    """
    for one in states:
        for after in (yield from departing(one, away, {})):
            yield settled(after, shown, zones) if agrees(after, shown, zones) else None


def settled(one: Hypothesis, shown: Collection[str], zones: Sequence[Zone]) -> Hypothesis:
    """
    Return the candidate with its spread CPUs moved to the NUMA nodes where the topology shows them.

    A topology shows the sum over several pods with spread CPUs, not the CPUs of each pod. CPUs are distributed to pods in uid order.
    """
    open_ = one.spread | one.mixed
    loose = [uid for uid in sorted(open_) if uid in shown and uid in one.state.pods]
    # If a shown pod has left and its CPUs may be on other NUMA nodes, its part of the counts is unknown and nothing is
    # settled.
    if not loose or any(uid in open_ for uid in shown if uid not in one.state.pods):
        return one
    if one.unlocated and not one.state.node.aligns:
        return one  # for unlocated pods only the sum over all NUMA nodes is known
    use = use_of(replace(one, spread=frozenset(loose), mixed=frozenset()), shown)
    if use is None or use.partly:
        return one
    due = {zone.numa: in_use(zone).get(CPU, 0) // MILLI - use.cpus.get(zone.numa, 0) for zone in zones}
    held = 0
    # Topologies do not show CPUs of init containers, so these CPUs are not moved.
    for uid in loose:
        for container in filter(_is_dealt, one.state.pods[uid].grant.containers):
            held |= container.cpus.bits
    # The remaining use must equal what these containers hold. On nodes that do not align, the places of all other pods
    # are unknown, too.
    if sum(due.values()) != held.bit_count() or any(count < 0 for count in due.values()):
        return one
    roomy = _with_room(one, due, held)
    # If more CPUs are shown than can be free or held, the place of another pod is wrong as well. A later topology
    # settles it.
    return one if roomy is None else _settled(roomy, loose, due, held)


def _settled(one: Hypothesis, loose: Sequence[str], due: Mapping[int, int], held: int) -> Hypothesis:
    """Return the candidate in which these pods hold ``due`` CPUs of every NUMA node instead of their present CPUs."""
    node = one.state.node
    pool = one.state.managers.cpus | held
    chosen = 0
    for numa, count in due.items():
        here = pool & node.machine.numa_bits[numa]
        # Present CPUs are kept where possible, so that equal candidates stay equal.
        kept = lowest(held & here, min(count, (held & here).bit_count()))
        chosen |= kept | lowest(here & ~kept, count - kept.bit_count())
    # With one pod or one NUMA node, it is certain which pod holds which CPUs.
    certain = len(loose) == 1 or sum(1 for count in due.values() if count) == 1
    left_open = frozenset(uid for uid in loose if _holds_otherwise(one, uid))
    dealt = _dealt(one, loose, chosen, pool & ~chosen)
    if packs_sockets(node):
        dealt = _narrowed(dealt, loose, mask_of(numa for numa, count in due.items() if count))
    mixed = left_open if certain else frozenset(loose)
    spread = one.spread.difference(loose) | left_open
    return replace(_held_by_init(dealt, one, loose), spread=spread, mixed=mixed)


def _is_dealt(one: ContainerGrant) -> bool:
    """Return whether only a topology shows where the container's CPUs are."""
    return one.kind is not ContainerKind.INIT and not is_located(one)


def _with_room(one: Hypothesis, due: Mapping[int, int], held: int) -> Hypothesis | None:
    """
    Return the candidate with ``due`` CPUs of every NUMA node free or ``held``, or ``None`` where that is impossible.

    Missing CPUs are taken from loose CPUs. All loose CPUs of a NUMA node must be needed, because otherwise their owner is ambiguous.
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
    """Return the bits of the loose CPUs whose NUMA nodes are certain if the CPUs are held."""
    known = 0
    for uid, bits in one.loose.items():
        pod = one.state.pods.get(uid)
        holders = [each for each in pod.grant.containers if each.cpus.bits & bits] if pod is not None else []
        if holders and not any(may_lie_otherwise(each, one.state.node) for each in holders):
            known |= bits
    return known


def _holds_otherwise(one: Hypothesis, uid: str) -> bool:
    """Return whether init containers of the pod may hold CPUs of other NUMA nodes than in this candidate, which no topology shows."""
    # Under best-effort, ``_held_by_init`` handles this case.
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
    Return the settled candidate in which init containers hold CPUs again if later containers have CPUs elsewhere.

    This can happen if a hint has fewer CPUs than are taken. Strict policies admit no such hint. Without hints, all containers of a pod
    choose from the same CPUs. Then the number of CPUs that a later container reuses is known (``cpu_manager.py``), and reused CPUs
    move together.
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
        # A CPU that a later container reuses stays the same CPU as the init container's, wherever it is moved.
        with_init = tuple(elsewhere(each, place_of) if each.kind is ContainerKind.INIT else each for each in containers)
        pods[uid] = replace(pods[uid], grant=replace(pods[uid].grant, containers=with_init))
    managers = one.state.managers
    state = replace(one.state, pods=pods, managers=ManagerState(free, managers.devices, managers.memory))
    return replace(one, state=state)


def _narrowed(one: Hypothesis, loose: Sequence[str], shown: int) -> Hypothesis:
    """Return the candidate with CPUs of these pods only on NUMA nodes where the topology shows such CPUs (mask ``shown``)."""
    pods = dict(one.state.pods)
    for uid in loose:
        containers = tuple(
            replace(each, numas=(each.numas or shown) & shown or each.numas) if _is_dealt(each) and each.cpus else each
            for each in pods[uid].grant.containers
        )
        pods[uid] = replace(pods[uid], grant=replace(pods[uid].grant, containers=containers))
    return replace(one, state=replace(one.state, pods=pods))


MOST_SETS: Final = 1_024
"""Maximum sets of pods of an undated topology that are compared pod by pod. With more sets the topology is not narrowed."""


@dataclass(frozen=True)
class UndatedTopology:
    """
    A topology that shows one of several possible sets of pods.

    ``shown`` are the sets of pod UIDs. The topology arrived at ``when``. ``cpus`` has the number of CPUs by pod that ``zones`` would
    show, if known.
    """

    shown: Sequence[tuple[str, ...]]
    zones: Sequence[Zone]
    when: float
    cpus: Mapping[str, int]

    @classmethod
    def of(
        cls, shown: Iterable[Collection[str]], zones: Sequence[Zone], when: float, states: Sequence[Hypothesis]
    ) -> Self:
        """Return a topology that arrived while these were the candidate states."""
        sets = [*map(tuple, shown)]
        uids = dict.fromkeys(uid for pods in sets for uid in pods)
        return cls(sets, zones, when, running_cpus(states[0], uids) if states else {})

    @cached_property
    def sets(self) -> list[tuple[str, ...]]:
        """The sets whose CPUs sum to the CPUs that the zones show."""
        if not self.cpus:
            return list(self.shown)
        there = sum(in_use(zone).get(CPU, 0) for zone in self.zones) // MILLI
        known = self.cpus
        return [
            pods
            for pods in self.shown
            if any(uid not in known for uid in pods) or sum(known[uid] for uid in pods) == there
        ]

    def agreeing(self, states: Sequence[Hypothesis]) -> tuple[Collection[str] | None, list[Hypothesis]]:
        """Return the first set that any state agrees with (``None`` without such a set), and all states that agree with some set."""
        found: Collection[str] | None = None
        # By identity, because equal states of different variants must both stay.
        kept: dict[int, Hypothesis] = {}
        for pods in self.sets:
            here = {id(one): one for one in states if agrees(one, pods, self.zones)}
            kept |= here
            if here and found is None:
                found = list(pods)
        return found, list(kept.values())

    def allows(self, one: Hypothesis) -> bool:
        """Return whether the topology may have been made in this state or a later one."""
        return may_explain(one, self.sets, self.zones)

    def speaks_of(self, uids: Iterable[str]) -> bool:
        """Return whether any of these pods is in one of the sets."""
        return any(uid in self._uids for uid in uids)

    @cached_property
    def _uids(self) -> frozenset[str]:
        return frozenset(uid for pods in self.sets for uid in pods) if len(self.shown) <= MOST_SETS else frozenset()

    def without(self, uid: str, *, surely: bool) -> "UndatedTopology":
        """Return the topology with additional sets without this pod. With ``surely``, they replace the present sets."""
        if len(self.shown) > MOST_SETS:
            return self
        away = [tuple(other for other in pods if other != uid) for pods in self.shown]
        return replace(self, shown=[*dict.fromkeys(away if surely else [*self.shown, *away])])


def allowed(states: list[Hypothesis], topologies: Iterable[UndatedTopology], uid: str) -> list[Hypothesis]:
    """
    Return the states after the arrival of this pod that all of these topologies allow.

    A topology that allows no state contradicts the known history and is ignored.
    """
    for each in topologies:
        # Topologies with other pods only were checked when those pods arrived.
        if each.speaks_of([uid]):
            states = list(filter(each.allows, states)) or states
    return states


def leads_to(shown: Collection[str], zones: Sequence[Zone]) -> Callable[[Hypothesis], bool]:
    """Return a predicate for states before the last ``shown`` pod arrives: the zones can be published later."""
    # A shown pod that has left before other shown pods arrived contradicts the topology.
    return lambda one: not any(uid in one.gone for uid in shown) and may_come_to(one, shown, zones)


MOST_EFFORT: Final = 2 * EVENT
"""Steps of a replay after a topology has contradicted all remaining states."""


class Again(ValueObject):
    """The limits of a replay: at most ``effort`` steps, and only states that pass ``leads_on``, a test against facts of a later moment."""

    effort: int = EVENT
    leads_on: Callable[[Hypothesis], bool] | None = None


ONCE: Final = Again()
"""The limits of the first replay after an update."""


class GivenUp(IntEnum):
    """The states that a replay dropped because its steps were spent."""

    NONE = 0
    SOME = 1
    LIKELY = 2  # all states without unlikely options

    def explained(self, kept: Iterable[Hypothesis]) -> bool:
        """
        Return whether the states that agree with a topology explain it.

        If all likely states were given up, one of the kept states must be likely.
        """
        return any(not one.options or self is not GivenUp.LIKELY for one in kept)


def given_up(before: Iterable[Hypothesis], after: Iterable[Hypothesis]) -> GivenUp:
    """Return which states of ``before`` an arrival dropped if only ``after`` is followed."""
    had_likely = any(not one.options for one in before)
    return GivenUp.LIKELY if had_likely and all(one.options for one in after) else GivenUp.SOME
