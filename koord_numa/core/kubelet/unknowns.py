"""
One candidate state of a kubelet, and everything that is not known about it.

A candidate is a modeled kubelet state with two sets of amounts per pod and NUMA node: amounts that the model holds and the kubelet may have
free, and amounts that the model has free and the kubelet may hold. ``lower``, ``upper`` and ``possible_managers`` apply
these amounts. ``arrive`` and
``released`` add and remove a pod, and ``join`` replaces several candidates by one. ``candidates.py`` enumerates candidates.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koord_numa.core.cpuset import CpuSet, lowest, members
from koord_numa.core.kubelet.admit import DryRunAdmitted, NotAdmitted, Trust, dry_run, dry_run_steps
from koord_numa.core.kubelet.budget import DECISION, EVENT, Budget
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.demand import PodDemand, is_memory, pod_demand
from koord_numa.core.kubelet.state import ContainerGrant, Grant, KubeletNode, KubeletState, ManagerState, reached_by
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import INIT, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MILLI, NOTHING, ResourceList
from koord_numa.core.value_objects import ValueObject, replace, value_field

Amounts = Mapping[int, ResourceList]
"""Amounts by NUMA id: CPUs in milli, memory in bytes, number of devices."""

Signature = tuple[object, ...]

EXTREMES: Final = 3
"""Number of managers that ``possible_managers`` yields first: the modeled state, and the states with the least and the most room."""

UNCERTAIN_REUSE: Final = 1.0
"""Lateness, in seconds, that is added for a state in which later containers reuse CPUs of an init container in an unusual way."""

_NO_AMOUNTS: Final[Amounts] = {}


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Limits of the candidate states.

    ``news_delay``: seconds within which an update about a pod's end or verdict arrives. ``topology_delay``: seconds
    after which every delivered
    topology shows an arrival. ``arrivals``: latest arrivals of a node that are replayed. ``leaving``: pods of which
    every subset may have left before
    another pod arrives. ``candidates``: states of a node that are followed. ``replay`` and ``question``: steps of
    one replay and of one decision
    on one node.
    """

    news_delay: float = 30.0
    topology_delay: float = 180.0
    arrivals: int = 40
    leaving: int = 4
    candidates: int = 48
    unlikely_candidates: int = 2
    replay: int = EVENT
    question: int = DECISION


LIMITS: Final = Limits()


class CandidateState(ValueObject):
    """
    One state that the kubelet may be in.

    ``state`` holds the pods whose placement is modeled. ``maybe_free`` and ``maybe_held`` are amounts by pod uid
    and NUMA node: the first are held in
    ``state`` and may be free, the second are free in ``state`` and may be held. ``open_split`` are pods whose CPUs
    are on several NUMA nodes in unknown
    numbers. Of the pods in ``open_owner`` only their sum per NUMA node is known. ``unknown_placement`` are pods
    that the kubelet admitted although ``state``
    would not: they are in ``maybe_held`` only. ``unlocated`` are pods of which only the sum of their use is known;
    ``state`` holds the sum. ``departed`` are
    pods that left and that a late topology may still show, with their grants, ``None`` where not known.
    ``unexplained`` are pods whose verdict differs from
    the prediction of ``state``. ``options`` are unpublished kubelet options that are assumed. ``lateness`` is the
    sum of the delays of updates, in seconds,
    that the state requires. ``unseen`` is a pod that left in this state without an event so far.
    """

    state: KubeletState
    maybe_free: Mapping[str, Amounts] = value_field(default_factory=dict)
    maybe_held: Mapping[str, Amounts] = value_field(default_factory=dict)
    open_split: frozenset[str] = frozenset()
    open_owner: frozenset[str] = frozenset()
    unknown_placement: Mapping[str, PodRequest] = value_field(default_factory=dict)
    unlocated: Mapping[str, PodRequest] = value_field(default_factory=dict)
    departed: Mapping[str, Grant | None] = value_field(default_factory=dict)
    unexplained: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()
    trust: Trust = Trust.EXACT
    lateness: float = 0.0
    unseen: str = ""

    def has(self, uid: str) -> bool:
        """Return whether the kubelet admitted this pod and still has it."""
        return uid in self.state.pods or uid in self.unlocated or uid in self.unknown_placement

    @property
    def is_exact(self) -> bool:
        """Whether nothing is unknown."""
        return not self.maybe_free and not self.maybe_held

    @property
    def signature(self) -> Signature:
        """Equal for candidates with the same pods in the same places. They may differ in ``maybe_free`` and ``maybe_held``."""
        node, memory = self.state.node, self.state.managers.memory
        wide = memory is not None and any(group & (group - 1) for group in memory.groups.values())
        return (
            id(node.machine),
            id(node.config),
            self.options,
            tuple(sorted((uid, placement_of(pod.grant, node)) for uid, pod in self.state.pods.items())),
            # The part of a block on each of several NUMA nodes depends on the amounts that were free.
            tuple(tuple(of.values()) for of in memory.free.values()) if wide and memory is not None else (),
            tuple(sorted(self.unlocated)),
            tuple(sorted(self.unknown_placement)),
            tuple(sorted(self.unexplained)),
            tuple(sorted(self.open_owner)),
            self.unseen,
        )

    @property
    def room(self) -> Signature:
        """Equal for candidates with the same free amounts, whichever pods hold the rest."""
        return (
            id(self.state.node.machine),
            id(self.state.node.config),
            self.options,
            room_of(self.state.node, self.state.managers),
            _flat(self.maybe_free),
            _flat(self.maybe_held),
        )


def room_of(node: KubeletNode, managers: ManagerState) -> Signature:
    """Return the free amounts: CPUs by NUMA node, devices by their NUMA nodes, memory and its groups."""
    cpus = _counted(managers.cpus, node)
    memory = managers.memory
    return (
        cpus,
        tuple(
            tuple(sorted(pool.masks[at] for at in members(pool.healthy & ~managers.devices[name])))
            if node.places_matter
            else (managers.devices[name].bit_count(),)
            for name, pool in node.devices.items()
        ),
        ()
        if memory is None
        else (
            tuple(amount for amounts in memory.free.values() for amount in amounts.values()),
            tuple(memory.groups.values()),
            tuple(map(bool, memory.blocks.values())),
        ),
    )


def _flat(amounts: Mapping[str, Amounts]) -> Signature:
    if not amounts:
        return ()
    summed = total_by_numa(amounts.values())
    return tuple(sorted((numa, name, amount) for numa, of in summed.items() for name, amount in of.items()))


def total_by_numa(parts: Iterable[Amounts]) -> dict[int, dict[str, int]]:
    """Return the sum of amounts by NUMA node."""
    summed: dict[int, dict[str, int]] = {}
    for part in parts:
        for numa, amounts in part.items():
            into = summed.setdefault(numa, {})
            for name, amount in amounts.items():
                into[name] = into.get(name, 0) + amount
    return summed


def cpus_by_numa(bits: int, node: KubeletNode) -> tuple[int, ...]:
    """Return the number of these CPUs on every NUMA node, in the machine's order."""
    return tuple([(bits & here).bit_count() for here in node.machine.numa_bits.values()])


def placement_of(grant: Grant, node: KubeletNode) -> Signature:
    """Return the NUMA nodes and amounts of every container. Equal for grants that no topology can distinguish."""
    if not grant.place:
        # A cache on a frozen class. A grant belongs to one node.
        object.__setattr__(grant, "place", (_placement_of(grant, node),))
    return grant.place


def _placement_of(grant: Grant, node: KubeletNode) -> Signature:
    return tuple(
        (
            container.name,
            tuple(
                # Without real ids the number of CPUs that an init container keeps is unknown, so only their NUMA nodes
                # are compared.
                min(count, 1) if container.kind is INIT and not node.ids_are_real else count
                for count in _counted(container.cpus.bits, node)
            ),
            tuple((block.resource, block.mask) for block in container.memory if block.amount),
            tuple(
                (name, tuple(sorted(node.devices[name].masks[node.devices[name].places[device]] for device in ids)))
                if node.places_matter
                else (name, len(ids))
                for name, ids in sorted(container.devices.items())
            ),
        )
        for container in grant.containers
    )


def _counted(bits: int, node: KubeletNode) -> tuple[int, ...]:
    return cpus_by_numa(bits, node) if node.places_matter else (bits.bit_count(),)


def adjusted(node: KubeletNode, managers: ManagerState, less: Amounts, more: Amounts) -> ManagerState:
    """Return the managers with ``less`` amounts held in addition and ``more`` amounts freed, limited to the amounts that exist."""
    if not less and not more:
        return managers
    memory = managers.memory.copy() if managers.memory is not None else None
    after = ManagerState(managers.cpus, dict(managers.devices), memory)
    for by_numa, hold in ((less, True), (more, False)):
        for numa, amounts in by_numa.items():
            for name, amount in amounts.items():
                if amount > 0:
                    _adjust(node, after, (numa, name), amount, hold=hold)
    return after


def _adjust(node: KubeletNode, managers: ManagerState, place: tuple[int, str], amount: int, *, hold: bool) -> None:
    """Hold or free an amount of a resource on one NUMA node in a copy of managers, limited to the amount that exists."""
    numa, name = place
    if name == CPU:
        here = node.machine.numa_bits.get(numa, 0)
        there = here & (managers.cpus if hold else ~managers.cpus & ~node.reserved)
        managers.cpus ^= lowest(there, min(amount // MILLI, there.bit_count()))
    elif is_memory(name):
        if managers.memory is not None and name in managers.memory.free.get(numa, NOTHING):
            there = managers.memory.free[numa][name] if hold else managers.memory.held[numa][name]
            managers.memory.hold(numa, name, min(amount, max(0, there)) if hold else -min(amount, max(0, there)))
    elif name in managers.devices:
        taken = managers.devices[name]
        there = node.devices[name].near(1 << numa) & (~taken if hold else taken)
        managers.devices[name] ^= lowest(there, min(amount, there.bit_count()))


def lower(candidate: CandidateState) -> ManagerState:
    """Return the managers with the least amounts that may be free."""
    if not candidate.maybe_held:
        return candidate.state.managers
    return adjusted(
        candidate.state.node, candidate.state.managers, total_by_numa(candidate.maybe_held.values()), _NO_AMOUNTS
    )


def upper(candidate: CandidateState) -> ManagerState:
    """Return the managers with the most amounts that may be free."""
    if not candidate.maybe_free:
        return candidate.state.managers
    return adjusted(
        candidate.state.node, candidate.state.managers, _NO_AMOUNTS, total_by_numa(candidate.maybe_free.values())
    )


def possible_managers(candidate: CandidateState) -> Iterator[ManagerState]:
    """
    Yield the managers that the candidate covers: the modeled managers, then managers between the least and the most free amounts.

    A kubelet takes the lowest NUMA nodes with enough room. So the states in which the first NUMA nodes have the
    least and the others the most
    room show every NUMA node that an alignment unit of one NUMA node may be put on.
    """
    node, managers = candidate.state.node, candidate.state.managers
    yield managers
    if candidate.is_exact:
        return
    less, more = (
        total_by_numa(candidate.maybe_held.values()),
        total_by_numa(candidate.maybe_free.values()),
    )
    seen = {room_of(node, managers)}
    ids = node.machine.numa_ids
    for count in (len(ids), *range(len(ids))):  # the extremes first
        first = set(ids[:count])
        found = adjusted(
            node,
            managers,
            {numa: amounts for numa, amounts in less.items() if numa in first},
            {numa: amounts for numa, amounts in more.items() if numa not in first},
        )
        room = room_of(node, found)
        if room not in seen or count in (0, len(ids)):
            seen.add(room)
            yield found


def released(candidate: CandidateState, uid: str) -> CandidateState:
    """
    Return the candidate without this pod.

    Amounts of a pod with unknown placement or of an unlocated pod may stay counted where the pod may have been.
    """
    unexplained = candidate.unexplained - {uid} if uid in candidate.unexplained else candidate.unexplained
    if uid in candidate.unknown_placement:
        return replace(
            candidate,
            unexplained=unexplained,
            unknown_placement=_others(candidate.unknown_placement, uid),
            maybe_held=_without(candidate.maybe_held, uid),
            departed={**candidate.departed, uid: None},
        )
    if uid in candidate.unlocated:
        demand = pod_demand(candidate.unlocated[uid])
        most = most_of(demand, candidate.state.node)
        return replace(
            candidate,
            unexplained=unexplained,
            unlocated=_others(candidate.unlocated, uid),
            maybe_held=_without(candidate.maybe_held, uid),
            maybe_free={**candidate.maybe_free, uid: most} if most else candidate.maybe_free,
            departed={**candidate.departed, uid: None},
        )
    pod = candidate.state.pods.get(uid)
    if pod is None:
        return candidate if unexplained is candidate.unexplained else replace(candidate, unexplained=unexplained)
    after = replace(
        candidate,
        state=candidate.state.without(uid),
        maybe_free=_without(candidate.maybe_free, uid),
        maybe_held=_without(candidate.maybe_held, uid),
        open_split=candidate.open_split - {uid} if candidate.open_split else candidate.open_split,
        departed={**candidate.departed, uid: pod.grant},
        unexplained=unexplained,
    )
    if uid not in candidate.open_owner:
        return after
    # Only the sum of these pods was known. Without one of them the places of the others are unknown again.
    others = candidate.open_owner - {uid}
    for other in sorted(others):
        after = with_open_split(after, other)
    return replace(after, open_owner=frozenset())


def _others(requests: Mapping[str, PodRequest], uid: str) -> Mapping[str, PodRequest]:
    return {other: request for other, request in requests.items() if other != uid}


def _without(amounts: Mapping[str, Amounts], uid: str) -> Mapping[str, Amounts]:
    return {other: of for other, of in amounts.items() if other != uid} if uid in amounts else amounts


def most_of(demand: PodDemand, node: KubeletNode) -> dict[int, dict[str, int]]:
    """
    Return the maximum that a pod may hold on every NUMA node: CPUs of all containers, memory and devices of containers that run together.
    """
    amounts = {name: amount for name, amount in demand.pod.devices.items() if amount and name in node.devices}
    cpus = sum(part.cpus for _, part in demand.containers) * MILLI
    if cpus and node.pins_cpus:
        amounts[CPU] = cpus
    if node.pins_memory:
        amounts.update({kind: amount for kind, amount in (demand.pod.memory or {}).items() if amount})
    return {numa: dict(amounts) for numa in node.machine.numa_ids} if amounts else {}


def has_open_split(container: ContainerGrant, node: KubeletNode) -> bool:
    """Return whether the container's CPUs may be on several NUMA nodes, in numbers that depend on unknown CPU ids."""
    if not container.cpus or node.ids_are_real or len(node.machine.numa_ids) == 1:
        return False
    if not node.places_matter:
        return True
    return reached_by(container, node).bit_count() > 1


def with_open_split(candidate: CandidateState, uid: str, *, only_init: bool = False) -> CandidateState:
    """
    Return the candidate with the pod's CPUs of unknown split charged to every NUMA node that they may be on.

    They may be free on every NUMA node where the model has them, and all of them may be held on every other one.
    ``only_init``: a topology has
    shown the CPUs of running containers, so only the other CPUs of init containers are unknown.
    """
    node, pod = candidate.state.node, candidate.state.pods[uid]
    if not node.places_matter:
        return candidate if only_init else replace(candidate, open_split=candidate.open_split | {uid})
    split = [container for container in pod.grant.containers if has_open_split(container, node)]
    bits = reach = lasting = 0
    for container in split:
        if container.kind is not INIT:
            lasting |= container.cpus.bits
        if container.kind is INIT or not only_init:
            bits |= container.cpus.bits
            reach |= reached_by(container, node)
    bits &= ~lasting if only_init else -1
    if not bits:
        return candidate
    free: dict[int, dict[str, int]] = {}
    held: dict[int, dict[str, int]] = {}
    count = bits.bit_count()
    for numa in members(reach):
        here = node.machine.numa_bits.get(numa, 0)
        own = (bits & here).bit_count()
        if own:
            free[numa] = {CPU: own * MILLI}
        if (more := min(count, (here & ~node.reserved).bit_count()) - own) > 0:
            held[numa] = {CPU: more * MILLI}
    return replace(
        candidate,
        maybe_free={**candidate.maybe_free, uid: _sum(candidate.maybe_free.get(uid), free)},
        maybe_held={**candidate.maybe_held, uid: _sum(candidate.maybe_held.get(uid), held)},
        open_split=candidate.open_split if only_init else candidate.open_split | {uid},
    )


def more_room_never_rejects(demand: PodDemand, node: KubeletNode) -> bool:
    """Sufficient condition: a kubelet that admits the pod also admits it with more free amounts."""
    policy = node.config.topology_policy
    if not node.aligns and not node.pins_memory:
        return True
    units = [part for _, part in demand.containers if part.cpus or part.memory or any(part.devices.values())]
    if policy is KubeletPolicy.BEST_EFFORT and not any(part.memory for part in units):
        return True  # best-effort admits a unit that it cannot align, with CPUs and devices from any NUMA node
    is_one_unit = len(units) <= 1 or node.config.topology_scope is KubeletScope.POD
    binds_widely = (
        node.pins_memory
        and any(part.memory for part in units)
        and policy
        not in (
            KubeletPolicy.SINGLE_NUMA_NODE,
            KubeletPolicy.RESTRICTED,
        )
    )
    return is_one_unit and not binds_widely


def arrive(before: CandidateState, uid: str, request: PodRequest, budget: Budget) -> list[CandidateState]:
    """
    Return the candidates after the kubelet received this pod: one per possible decision, the most likely first.

    Raises ``OverBudget`` when the budget is spent.
    """
    node, demand = before.state.node, pod_demand(request)
    orders = reuse_orders(demand, node)
    found: dict[Signature, CandidateState] = {}
    for number, managers in enumerate(possible_managers(before)):
        if number == EXTREMES and len(found) == 1 and more_room_never_rejects(demand, node):
            break  # a pod of one unit is put on the same NUMA nodes in all states between the extremes
        budget.spend(len(orders) * dry_run_steps(node, demand))
        state = replace(before.state, managers=managers) if number else before.state
        answers = [dry_run(state, request, before.trust, order) for order in orders]
        for after in _outcomes(before, uid, request, answers, is_modeled=not number):
            key = (placement_of(after.state.pods[uid].grant, node),) if uid in after.state.pods else ()
            if key not in found:
                found[key] = replace(after, lateness=after.lateness + UNCERTAIN_REUSE) if number else after
    return list(found.values())


def reuse_orders(demand: PodDemand, node: KubeletNode) -> tuple[CpuReuse, ...]:
    """Return the extremes of how later containers reuse CPUs of init containers, or a single order if that is known."""
    if len(demand.counts) < 2 or not node.pins_cpus or node.ids_are_real:
        return (CpuReuse.BY_ID,)
    kinds = [container.kind for container, part in demand.containers if part.cpus]
    return (CpuReuse.LEAST, CpuReuse.MOST) if INIT in kinds[:-1] else (CpuReuse.BY_ID,)


def _outcomes(
    before: CandidateState,
    uid: str,
    request: PodRequest,
    answers: list[DryRunAdmitted | NotAdmitted],
    *,
    is_modeled: bool,
) -> Iterator[CandidateState]:
    node = before.state.node
    admitted = [answer for answer in answers if isinstance(answer, DryRunAdmitted)]
    if len(admitted) == 2 and placement_of(admitted[0].grant, node) == placement_of(admitted[1].grant, node):
        # The least reuse holds the most CPUs. CPUs that only the most reuse leaves free may be free.
        least, most = admitted
        after = _placed(before, uid, request, least, is_modeled=is_modeled)
        more = _more_free(node, least, most)
        yield (
            replace(after, maybe_free={**after.maybe_free, uid: _sum(after.maybe_free.get(uid), more)})
            if more
            else after
        )
    else:
        for answer in admitted:
            after = _placed(before, uid, request, answer, is_modeled=is_modeled)
            # Admitted with one order only: up to all CPUs of its init containers may be held in addition.
            yield after if len(answers) == len(admitted) == 1 else _with_init_cpus_held(after, uid)
    if len(admitted) < len(answers):
        yield before


def _sum(first: Amounts | None, second: Amounts) -> Amounts:
    return second if not first else total_by_numa((first, second))


def _more_free(node: KubeletNode, least: DryRunAdmitted, most: DryRunAdmitted) -> dict[int, dict[str, int]]:
    found = {}
    for numa, here in node.machine.numa_bits.items():
        count = (most.managers.cpus & here).bit_count() - (least.managers.cpus & here).bit_count()
        if count > 0:
            found[numa] = {CPU: count * MILLI}
    return found


def _with_init_cpus_held(after: CandidateState, uid: str) -> CandidateState:
    node, held = after.state.node, {}
    init = lasting = 0
    for container in after.state.pods[uid].grant.containers:
        if container.kind is INIT:
            init |= container.cpus.bits
        else:
            lasting |= container.cpus.bits
    for numa, here in node.machine.numa_bits.items():
        if count := (init & lasting & here).bit_count():
            held[numa] = {CPU: count * MILLI}
    if not held:
        return after
    return replace(after, maybe_held={**after.maybe_held, uid: _sum(after.maybe_held.get(uid), held)})


def _placed(
    before: CandidateState, uid: str, request: PodRequest, answer: DryRunAdmitted, *, is_modeled: bool
) -> CandidateState:
    """Return the candidate with this pod. CPUs that the model does not have free are exchanged for CPUs of the same NUMA node."""
    if is_modeled:
        after = replace(before, state=before.state.with_pod(uid, request, answer.grant, answer.managers))
    else:
        after = _exchanged(before, uid, request, answer.grant)
    node, grant = before.state.node, after.state.pods[uid].grant
    if node.shared_devices and node.places_matter:
        after = _with_shared_devices(after, uid, grant)
    if any(has_open_split(container, node) for container in grant.containers):
        after = with_open_split(after, uid)
    return after


def _exchanged(before: CandidateState, uid: str, request: PodRequest, grant: Grant) -> CandidateState:
    """
    Return the candidate with a grant of other managers, in CPUs that the model has free.

    A CPU that the model does not have free is exchanged for another CPU of its NUMA node, or for a CPU that another pod may not hold.
    """
    node, numa_bits = before.state.node, before.state.node.machine.numa_bits
    wanted = 0
    for container in grant.containers:
        wanted |= container.cpus.bits
    place_of: dict[int, int] = {}
    after = before
    for numa, here in numa_bits.items():
        missing = members(wanted & here & ~before.state.managers.cpus)
        others = members(before.state.managers.cpus & here & ~wanted)[: len(missing)]
        place_of.update(zip(missing, others, strict=False))
        for cpu in missing[len(others) :]:
            after, freed = _with_one_freed(after, numa)
            if freed is not None:
                place_of[cpu] = freed
    managers = after.state.managers.copy()
    containers = tuple(
        replace(container, cpus=_moved(container.cpus, place_of)) if container.cpus.bits else container
        for container in grant.containers
    )
    for container in containers:
        managers.cpus &= ~container.cpus.bits
        for name, ids in container.devices.items():
            for device in ids:
                managers.devices[name] |= 1 << node.devices[name].places[device]
        if managers.memory is not None and container.kind is not INIT:
            for block in container.memory:
                managers.memory.take(block, covered=0)
    changed = Grant(grant.qos, containers)
    return replace(after, state=after.state.with_pod(uid, request, changed, managers))


def _moved(cpus: CpuSet, place_of: Mapping[int, int]) -> CpuSet:
    return CpuSet(sum(1 << cpu for cpu in {place_of.get(cpu, cpu) for cpu in members(cpus.bits)}))


def _with_one_freed(candidate: CandidateState, numa: int) -> tuple[CandidateState, int | None]:
    """Return the candidate without one CPU of this NUMA node that a pod may not hold, and the CPU, or ``None`` without such a CPU."""
    here = candidate.state.node.machine.numa_bits[numa]
    for uid, amounts in candidate.maybe_free.items():
        count = amounts.get(numa, NOTHING).get(CPU, 0)
        if count <= 0:
            continue
        found = _nameless_cpu(candidate.state, here) if uid not in candidate.state.pods else None
        state = candidate.state
        if uid in candidate.state.pods:
            state, found = _without_one_cpu(candidate, uid, here)
        if not found:
            continue
        managers = ManagerState(state.managers.cpus | found, state.managers.devices, state.managers.memory)
        after = replace(
            candidate,
            state=replace(state, managers=managers),
            maybe_free={**candidate.maybe_free, uid: {**amounts, numa: {**amounts[numa], CPU: count - MILLI}}},
        )
        return after, found.bit_length() - 1
    return candidate, None


def _nameless_cpu(state: KubeletState, here: int) -> int:
    """Return the bit of a CPU that is in use but not by a pod with modeled placement, or 0."""
    named = 0
    for pod in state.pods.values():
        for container in pod.grant.containers:
            named |= container.cpus.bits
    return lowest(here & ~state.managers.cpus & ~state.node.reserved & ~named, 1)


def _without_one_cpu(candidate: CandidateState, uid: str, here: int) -> tuple[KubeletState, int]:
    """
    Return the state in which the pod does not hold one of these CPUs, and the bit of the CPU, or 0 without such a CPU.

    A CPU of an init container becomes free. A CPU of unknown split is replaced by a CPU of another NUMA node.
    """
    state, pod = candidate.state, candidate.state.pods[uid]
    init = lasting = 0
    for container in pod.grant.containers:
        if container.kind is INIT:
            init |= container.cpus.bits
        else:
            lasting |= container.cpus.bits
    found, managers = lowest(init & ~lasting & here, 1), state.managers
    place_of: dict[int, int] = {}
    if not found and uid in candidate.open_split:
        found, other = lowest(lasting & here, 1), lowest(managers.cpus & ~here, 1)
        if not found or not other:
            return state, 0
        place_of[found.bit_length() - 1] = other.bit_length() - 1
        managers = ManagerState(managers.cpus & ~other, managers.devices, managers.memory)
    if not found:
        return state, 0
    containers = []
    for container in pod.grant.containers:
        if place_of:
            container = replace(container, cpus=_moved(container.cpus, place_of))
        elif container.kind is INIT:
            container = replace(container, cpus=CpuSet(container.cpus.bits & ~found))
        containers.append(container)
    pods = {**state.pods, uid: replace(pod, grant=Grant(pod.grant.qos, tuple(containers)))}
    return replace(state, managers=managers, pods=pods), found


def _with_shared_devices(after: CandidateState, uid: str, grant: Grant) -> CandidateState:
    """Charge devices that may be near several NUMA nodes to every one of these."""
    node = after.state.node
    free: dict[int, dict[str, int]] = {}
    held: dict[int, dict[str, int]] = {}
    for name in node.shared_devices:
        pool = node.devices[name]
        own: dict[int, int] = {}
        count = 0
        for container in grant.containers:
            hint = container.hint
            is_sure = hint is not None and hint.preferred and hint.mask is not None and hint.mask.bit_count() == 1
            for device in container.devices.get(name, ()):
                numa = members(pool.masks[pool.places[device]])[0]
                own[numa] = own.get(numa, 0) + 1
                count += 1
                if not is_sure:
                    free.setdefault(numa, {})[name] = free.get(numa, {}).get(name, 0) + 1
        for numa in pool.on if count else ():
            if (more := count - own.get(numa, 0)) > 0:
                held.setdefault(numa, {})[name] = more
    if not free and not held:
        return after
    return replace(
        after,
        maybe_free={**after.maybe_free, uid: _sum(after.maybe_free.get(uid), free)} if free else after.maybe_free,
        maybe_held={**after.maybe_held, uid: _sum(after.maybe_held.get(uid), held)} if held else after.maybe_held,
    )


def unknown_pod(candidate: CandidateState, uid: str, request: PodRequest) -> CandidateState:
    """Return the candidate with a pod that may be on any NUMA node."""
    most = most_of(pod_demand(request), candidate.state.node)
    if not most:
        return candidate
    return replace(
        candidate,
        unknown_placement={**candidate.unknown_placement, uid: request},
        maybe_held={**candidate.maybe_held, uid: most},
    )


def join(states: Sequence[CandidateState]) -> CandidateState | None:
    """
    Return one candidate that covers all of these candidates of one node, or ``None`` where amounts cannot express the differences.

    A pod whose placement differs may be on every NUMA node where a candidate has it. Memory groups that depend on the placement cannot be
    expressed in amounts.
    """
    base = states[0]
    if len(states) == 1:
        return base
    node = base.state.node
    uids = dict.fromkeys(uid for one in states for uid in (*one.state.pods, *one.unlocated, *one.unknown_placement))
    held: dict[str, Amounts] = {}
    free: dict[str, Amounts] = {}
    unknown: dict[str, PodRequest] = {}
    for uid in uids:
        grants = [one.state.pods[uid].grant if uid in one.state.pods else None for one in states]
        most = _largest(_most_held(one, uid) for one in states)
        if None not in grants and len({placement_of(grant, node) for grant in grants if grant is not None}) == 1:
            own = _held_amounts(states[0].state.pods[uid].grant, node)
            most = _difference(most, own)
            if less := _largest(_difference(own, _least_held(one, uid)) for one in states):
                free[uid] = less
        elif not all(uid in one.unlocated for one in states):
            if _may_group_memory(states, grants, uid):
                return None
            unknown[uid] = next(request for one in states if (request := _request_of(one, uid)) is not None)
            base = replace(base, state=base.state.without(uid))
        if most:
            held[uid] = most
    # Amounts that pods that left may have freed are in no grant.
    for one in states:
        for uid in one.maybe_free.keys() - uids.keys():
            free[uid] = _largest([free.get(uid, _NO_AMOUNTS), one.maybe_free[uid]])
    return replace(
        base,
        maybe_free=free,
        maybe_held=held,
        open_split=frozenset().union(*(one.open_split for one in states)).difference(unknown),
        open_owner=frozenset().union(*(one.open_owner for one in states)).difference(unknown),
        unknown_placement=unknown,
        departed=_all_departed(states),
        unexplained=frozenset(),
        lateness=min(one.lateness for one in states),
        unseen="",
    )


def _most_held(one: CandidateState, uid: str) -> Amounts:
    own = _held_amounts(one.state.pods[uid].grant, one.state.node) if uid in one.state.pods else _NO_AMOUNTS
    return total_by_numa((own, one.maybe_held.get(uid, _NO_AMOUNTS)))


def _least_held(one: CandidateState, uid: str) -> Amounts:
    return _difference(_held_amounts(one.state.pods[uid].grant, one.state.node), one.maybe_free.get(uid, _NO_AMOUNTS))


def _may_group_memory(states: Sequence[CandidateState], grants: Sequence[Grant | None], uid: str) -> bool:
    """Return whether the pod's memory may group NUMA nodes in one of the states."""
    if states[0].state.node.pins_memory and any(uid in one.unlocated for one in states):
        return True
    blocks = (block for grant in grants if grant is not None for one in grant.containers for block in one.memory)
    return any(block.mask & (block.mask - 1) for block in blocks)


def _all_departed(states: Sequence[CandidateState]) -> dict[str, Grant | None]:
    """Return the grants of pods that left, ``None`` where the states differ."""
    departed: dict[str, Grant | None] = {}
    for one in states:
        node = one.state.node
        for uid, grant in one.departed.items():
            known = departed.setdefault(uid, grant)
            if known is not None and (grant is None or placement_of(known, node) != placement_of(grant, node)):
                departed[uid] = None
    return departed


def _request_of(candidate: CandidateState, uid: str) -> PodRequest | None:
    if uid in candidate.state.pods:
        return candidate.state.pods[uid].request
    return candidate.unknown_placement.get(uid) or candidate.unlocated.get(uid)


def _held_amounts(grant: Grant, node: KubeletNode) -> Amounts:
    """Return the amounts of a grant per NUMA node. Memory of finished init containers is free again."""
    found: dict[int, dict[str, int]] = {}
    bits = 0
    devices: dict[str, int] = {}
    for container in grant.containers:
        bits |= container.cpus.bits
        for name, ids in container.devices.items():
            places = node.devices[name].places
            devices[name] = devices.get(name, 0) | sum(1 << places[device] for device in ids)
        for block in container.memory if container.kind is not INIT else ():
            for numa in members(block.mask):
                into = found.setdefault(numa, {})
                into[block.resource] = into.get(block.resource, 0) + block.amount
    for name, taken in devices.items():
        for numa, here in node.devices[name].on.items():
            if count := (taken & here).bit_count():
                found.setdefault(numa, {})[name] = count
    for numa, count in zip(node.machine.numa_bits, cpus_by_numa(bits, node), strict=True):
        if count:
            found.setdefault(numa, {})[CPU] = count * MILLI
    return found


def _largest(parts: Iterable[Amounts]) -> dict[int, dict[str, int]]:
    """Return the largest amount of every resource by NUMA node."""
    found: dict[int, dict[str, int]] = {}
    for part in parts:
        for numa, amounts in part.items():
            into = found.setdefault(numa, {})
            for name, amount in amounts.items():
                into[name] = max(into.get(name, 0), amount)
    return found


def _difference(first: Amounts, second: Amounts) -> dict[int, dict[str, int]]:
    """Return the amounts by which the first exceed the second."""
    found: dict[int, dict[str, int]] = {}
    for numa, amounts in first.items():
        other = second.get(numa, NOTHING)
        more = {name: amount - other.get(name, 0) for name, amount in amounts.items() if amount > other.get(name, 0)}
        if more:
            found[numa] = more
    return found
