"""
States that differ from a hypothesis only in facts that no event shows: the CPUs and devices of a pod, and the NUMA nodes
of a departed pod.

Loose CPUs are held by a finished init container or free. Spread CPUs are on one of several NUMA nodes. ``variants``
and ``device_layouts`` list the states to try for a pod. ``distinct`` merges hypotheses. ``without`` lists the states
after the departure of pods whose NUMA nodes are not known: every placement that is consistent with the published sums
gives one state.
"""

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice
from typing import Final

from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.core.cpus.kubelet_options import OVER_NUMA
from koord_numa.core.cpuset import CpuSet, from_each, lowest, members
from koord_numa.core.kubelet.bounds import (
    STRICT,
    Sight,
    asks_for_one_device,
    everything,
    may_deal_over_numa,
    splits_unknown,
)
from koord_numa.core.kubelet.demand import ContainerDemand, PodDemand, pod_demand
from koord_numa.core.kubelet.hypothesis import (
    SOMEONE,
    Hypothesis,
    Signature,
    assumed_pool,
    cpus_by_numa,
    deal,
    fewest_free,
    may_lie_otherwise,
    places_of,
    reached,
    released,
    signature,
)
from koord_numa.core.kubelet.state import (
    ContainerGrant,
    DevicePool,
    Grant,
    KubeletNode,
    KubeletState,
    ManagerState,
    MemoryBlock,
    MemoryTable,
    TooManyWays,
    spend,
)
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import without_zeros
from koord_numa.core.value_objects import ValueObject, replace

Owners = frozenset[str]
"""The possible owners of one loose CPU, by uid."""


def owners_of(one: Hypothesis, bits: int = -1) -> dict[int, Owners]:
    """Return the possible owners of every loose CPU among these CPUs."""
    found: dict[int, Owners] = {}
    for uid, loose in one.loose.items():
        for cpu in members(loose & bits):
            found[cpu] = found.get(cpu, frozenset()) | {uid}
    return found


def may_share(one: Hypothesis, uids: Iterable[str]) -> bool:
    """Return whether the places of the CPUs of all these pods are known, and every pod has an init container."""
    return all(
        uid != SOMEONE
        # Without alignment there is one place only.
        and not (one.state.node.aligns and uid in one.spread | one.mixed)
        and uid in one.state.pods
        and any(each.kind is ContainerKind.INIT for each in one.state.pods[uid].grant.containers)
        for uid in uids
    )


def more_owners(one: Hypothesis, other: Hypothesis) -> dict[str, int] | None:
    """
    Return the loose CPUs, by pod, that ``one`` needs in addition so that it also covers hypothesis ``other``.

    Both hypotheses have the same pods on the same NUMA nodes and the same number of surely held CPUs. Return ``None`` if CPUs with an
    unknown NUMA node are affected.
    """
    more: dict[str, int] = {}
    for here in places_of(one.state.node):
        known, missing = owners_of(one, here), list(owners_of(other, here).values())
        left = _without_known(known, missing)
        spare = [*left, *members(one.state.managers.cpus & here)]
        if len(missing) > len(spare):
            return None
        for owners in missing:
            # Prefer the CPU with the most of these owners, and loose CPUs to free CPUs.
            cpu = max(spare, key=lambda cpu: len(known.get(cpu, frozenset()) & owners))
            spare.remove(cpu)
            for uid in sorted(owners - known.get(cpu, frozenset())):
                more[uid] = more.get(uid, 0) | 1 << cpu
    touched = set(more) | {uid for uid, bits in one.loose.items() for each in more.values() if bits & each}
    return more if may_share(one, touched) else None


def _without_known(known: dict[int, Owners], missing: list[Owners]) -> Sequence[int]:
    """Remove from ``missing`` the owners that known CPUs cover. Return the unused known CPUs, those with the fewest owners first."""
    left = sorted(known, key=lambda cpu: len(known[cpu]))
    for owners in sorted(missing, key=len, reverse=True):
        cpu = next((cpu for cpu in left if owners <= known[cpu]), None)
        if cpu is not None:
            left.remove(cpu)
            missing.remove(owners)
    return left


MOST_LOOKED_AT: Final = 400
"""Maximum vectors of free CPUs per NUMA node that are compared."""

MOST_ROOMS: Final = 64
"""Maximum distributions of free CPUs over NUMA nodes that a pod can distinguish."""

Counts = tuple[int, ...]
"""CPUs per NUMA node, in the order of the machine's NUMA nodes."""


class _Part(ValueObject):
    """
    CPUs of one pod, as bits, each of which may be on any NUMA node of ``reach``. ``reach`` has indexes in the machine's
    order of NUMA nodes.
    """

    uid: str
    bits: int
    reach: Sequence[int]


def spread_rooms(
    one: Hypothesis, seen: Callable[[Counts], Hashable], *, far: bool = True
) -> Generator[Hypothesis, None, bool]:
    """
    Yield the hypothesis with spread CPUs on other NUMA nodes, once per distinct value of ``seen``.

    The return value is whether all of them were yielded. Fewer moved CPUs come first, then pods in uid order. Without ``far``, one CPU is
    moved.
    """
    node = one.state.node
    parts = [part for uid in sorted(one.spread) for part in _parts(one, uid)]
    free = cpus_by_numa(one.state.managers.cpus, node)
    start = tuple(cpus_by_numa(part.bits, node) for part in parts)
    known, told = {free}, {seen(free)}
    # Breadth first: states with the fewest moved CPUs come first.
    queue = [(free, start)]
    for free, held in queue if far else [*queue]:
        spend()
        for moved in _moves(free, held, parts):
            if moved[0] in known:
                continue
            if len(known) >= MOST_LOOKED_AT or len(told) > MOST_ROOMS:
                return False
            known.add(moved[0])
            queue.append(moved)
            if (key := seen(moved[0])) not in told:
                spend()
                told.add(key)
                yield _with_shares(one, parts, moved[1])
    return True


def _moves(
    free: Counts, held: tuple[Counts, ...], parts: Sequence[_Part]
) -> Iterator[tuple[Counts, tuple[Counts, ...]]]:
    """Yield the results of moving one CPU of a part to another NUMA node."""
    for at, part in enumerate(parts):
        for here in part.reach:
            if not held[at][here]:
                continue
            for there in part.reach:
                if there != here and free[there]:
                    shares = _shifted(held[at], here, there)
                    yield _shifted(free, there, here), (*held[:at], shares, *held[at + 1 :])


def _shifted(counts: Counts, here: int, there: int) -> Counts:
    return tuple(count - (at == here) + (at == there) for at, count in enumerate(counts))


def _parts(one: Hypothesis, uid: str) -> Iterator[_Part]:
    """Yield the pod's CPUs by the NUMA nodes that they may be on. A CPU of several containers may be where all of them may be."""
    node, containers = one.state.node, one.state.pods[uid].grant.containers
    found: dict[int, int] = {}
    for bit in (1 << cpu for cpu in members(_held(containers))):
        reach = node.machine.numa_mask
        for each in containers:
            if each.cpus.bits & bit:
                reach &= reached(each, node) if may_lie_otherwise(each, node) else 0
        found[reach] = found.get(reach, 0) | bit
    places = list(node.machine.numa_bits)
    for reach, bits in found.items():
        if reach.bit_count() > 1:
            yield _Part(uid, bits, [at for at, numa in enumerate(places) if reach >> numa & 1])


def _held(containers: Sequence[ContainerGrant]) -> int:
    bits = 0
    for each in containers:
        bits |= each.cpus.bits
    return bits


def _with_shares(one: Hypothesis, parts: Sequence[_Part], shares: Sequence[Counts]) -> Hypothesis:
    """Return the hypothesis with these numbers of CPUs per part and NUMA node."""
    numa_bits, managers = list(one.state.node.machine.numa_bits.values()), one.state.managers
    given = []
    free = managers.cpus
    for part, counts in zip(parts, shares, strict=True):
        left = 0
        for here, count in zip(numa_bits, counts, strict=True):
            left |= lowest(part.bits & here, max(0, (part.bits & here).bit_count() - count))
        given.append(left)
        free |= left
    place_of: dict[tuple[str, int], int] = {}
    for part, counts, left in zip(parts, shares, given, strict=True):
        taken = 0
        for here, count in zip(numa_bits, counts, strict=True):
            taken |= lowest(free & here, max(0, count - (part.bits & here).bit_count()))
        free &= ~taken
        place_of.update(((part.uid, old), new) for old, new in zip(members(left), members(taken), strict=True))
    pods = dict(one.state.pods)
    for uid in {uid for uid, _ in place_of}:
        containers = tuple(
            replace(each, cpus=CpuSet(sum(1 << place_of.get((uid, cpu), cpu) for cpu in members(each.cpus.bits))))
            for each in pods[uid].grant.containers
        )
        pods[uid] = replace(pods[uid], grant=replace(pods[uid].grant, containers=containers))
    changed = ManagerState(free, managers.devices, managers.memory)
    return replace(one, state=replace(one.state, managers=changed, pods=pods))


MOST_VARIANTS: Final = 6
"""Maximum variants of freed loose CPUs and moved packed CPUs. CPUs of several NUMA nodes are nearly always where a dry run predicts."""


def variants(one: Hypothesis, request: PodRequest | None = None, *, all_ways: bool = False) -> Iterator[Hypothesis]:
    """
    Yield the hypothesis, then every other possible state that differs in loose or spread CPUs.

    Of the states with the same free CPUs for ``request``, one is yielded. With ``all_ways``, yields the states in which a thread of a
    split core is on another NUMA node, and raises ``TooManyWays`` at the end if there are more.
    """
    yield one
    if not one.loose and not one.spread:
        return  # no CPU is loose or spread
    freed_ones = [*_freed_otherwise(one)]
    yield from freed_ones
    yield from islice(_lying_otherwise(one), max(0, MOST_VARIANTS - len(freed_ones)))
    node = one.state.node
    # With unlikely options, all shares are tried only if the option is the one that makes all shares possible. A pod
    # that is admitted in all tried states explores nothing.
    if one.spread and set(one.options) <= {OVER_NUMA} and may_deal_over_numa(node):
        complete = yield from _dealt_otherwise(one, request)
        if all_ways and not complete:
            raise TooManyWays
    elif all_ways and not one.options and _may_split_cores(one):
        yield from spread_rooms(one, _seen_by(request, node), far=False)


def _may_split_cores(one: Hypothesis) -> bool:
    """
    Return whether a spread container has one thread of a core, and the pod may be rejected for its NUMA node.

    The kubelet takes whole cores first. Containers of 11 and 4 CPUs on cores of two threads leave a thread of the last core of the 11 free.
    """
    node = one.state.node
    if node.takes_whole_cores or node.config.topology_policy not in STRICT:
        return False
    pods = (one.state.pods[uid] for uid in one.spread)
    return any(len(each.cpus) % 2 for pod in pods for each in pod.grant.containers)


def _seen_by(request: PodRequest | None, node: KubeletNode) -> Callable[[Counts], Hashable]:
    """Return a function of the free CPUs per NUMA node that is equal where the pod cannot tell them apart; without a pod, the identity."""
    if request is None:
        return tuple
    sight = Sight(request, node)
    return lambda counts: sight.cpus(node, counts)


def _dealt_otherwise(one: Hypothesis, request: PodRequest | None) -> Generator[Hypothesis, None, bool]:
    """
    Yield the states of ``spread_rooms``. Return whether they are complete.

    A state names the kubelet option that it assumes, if that option is not published.
    """
    node = one.state.node
    options = () if node.distributes_across_numa or splits_unknown(node) else (OVER_NUMA,)
    rooms = spread_rooms(one, _seen_by(request, node))
    if not options:
        return (yield from rooms)
    # An exploration of the first of them shows whether the option is on, so the list need not be complete.
    yield from (replace(each, options=options) for each in rooms)
    return True


def layouts_to_decide(one: Hypothesis, request: PodRequest) -> Iterator[Hypothesis]:
    """
    Yield states for the decision on a pod whose devices may be near several NUMA nodes, so that every possible placement occurs.

    For a pod with a single device, there is a state for every set of NUMA nodes that the free devices may be near. Other pods use the
    states of ``device_layouts``. These are fewer, and a replay uses them for all pods.
    """
    names = one.sharing.keys() & everything(request).devices.keys()
    if not asks_for_one_device(request, names, one.state.node):
        yield from device_layouts(one, request)
        return
    [name] = names
    for pool in _pools_by_free_nodes(one, name):
        yield _with_pools(one, {name: pool})


def _pools_by_free_nodes(one: Hypothesis, name: str) -> Iterator[DevicePool]:
    """Yield a pool for every set of NUMA nodes that the free devices may be near."""
    shared, taken = one.sharing[name], one.state.managers.devices[name]
    few = fewest_free(shared, taken.bit_count())
    everywhere = sum(1 << numa for numa, count in shared.counts.items() if count)
    sure = sum(1 << numa for numa, count in few.items() if count)
    perhaps = members(everywhere & ~sure)
    # Many NUMA nodes first: with them the pod is most likely placed as in the other states of the node.
    for far in chain.from_iterable(combinations(perhaps, count) for count in range(len(perhaps) + 1)):
        near = everywhere & ~sum(1 << numa for numa in far)
        yield assumed_pool(name, tuple(everywhere if taken >> place & 1 else near for place in range(shared.total)))


def _with_pools(one: Hypothesis, pools: Mapping[str, DevicePool]) -> Hypothesis:
    node = one.state.node
    return replace(one, state=replace(one.state, node=replace(node, devices={**node.devices, **pools})))


def device_layouts(one: Hypothesis, request: PodRequest) -> Iterator[Hypothesis]:
    """
    Yield states that bring a pod with devices near several NUMA nodes to every single NUMA node that it may be put on.

    The kubelet chooses the lowest NUMA node with enough free devices. So for every NUMA node there is a state with as
    few free devices as possible near lower NUMA nodes and as many as possible near the others, and one state with few
    free devices near all NUMA nodes.
    """
    names = one.sharing.keys() & everything(request).devices.keys()
    if not names:
        yield one
        return
    seen = list[dict[str, DevicePool]]()
    for first in (*one.state.node.machine.numa_ids, MAX_NUMA_ID + 1):
        pools = {name: _pool_with_few_below(one, name, first) for name in names}
        if pools not in seen:
            seen.append(pools)
            yield _with_pools(one, pools)


def _pool_with_few_below(one: Hypothesis, name: str, first: int) -> DevicePool:
    """
    Return the pool with as few free devices as possible near NUMA nodes below ``first``, and as many near the others.

    Devices in use get the remaining counts: the narrowest hint depends on all devices (generateDeviceTopologyHints in topology_hints.go).
    """
    shared, taken = one.sharing[name], one.state.managers.devices[name]
    in_use, few = taken.bit_count(), fewest_free(shared, taken.bit_count())
    free = {
        numa: min(count, shared.total - in_use) if numa >= first else few[numa] for numa, count in shared.counts.items()
    }
    used = {numa: count - free[numa] for numa, count in shared.counts.items()}
    of_free, of_used = iter(deal(free, shared.total - in_use)), iter(deal(used, in_use))
    near = (next(of_used if taken >> place & 1 else of_free) for place in range(shared.total))
    return assumed_pool(name, tuple(near))


def _freed_otherwise(one: Hypothesis) -> Iterator[Hypothesis]:
    if one.loose:
        bits = 0
        for each in one.loose.values():
            bits |= each
        # All loose CPUs free first: this state differs most.
        yield freed(one, bits)
        parts = [bits & here for here in one.state.node.machine.numa_bits.values() if bits & here]
        if len(parts) > 1:
            for part in parts:
                yield freed(one, part)


def _lying_otherwise(one: Hypothesis) -> Iterator[Hypothesis]:
    """Yield states with as many spread CPUs of one pod as possible on one NUMA node, the extremes for packed CPUs."""
    # Under policy none, the NUMA nodes of CPUs have no effect.
    if one.state.node.config.topology_policy is not KubeletPolicy.NONE:
        # Sorted for a stable result, because the number of variants is limited.
        for uid in sorted(one.spread):
            places = _places_of(one, uid)
            for numa, here in one.state.node.machine.numa_bits.items():
                if one.state.managers.cpus & here and (moved := _moved(one, uid, numa, places)) is not None:
                    yield moved


def freed(one: Hypothesis, bits: int) -> Hypothesis:
    """Return the hypothesis with these loose CPUs free."""
    managers = one.state.managers
    state = replace(one.state, managers=ManagerState(managers.cpus | bits, managers.devices, managers.memory))
    loose = {uid: each & ~bits for uid, each in one.loose.items() if each & ~bits}
    return replace(one, state=_shrunk(state, bits), loose=loose)


def _shrunk(state: KubeletState, bits: int) -> KubeletState:
    """Return the state without these free CPUs in the grants of init containers."""
    pods = dict(state.pods)
    for uid, pod in state.pods.items():
        if any(one.cpus.bits & bits and one.kind is ContainerKind.INIT for one in pod.grant.containers):
            containers = tuple(
                replace(one, cpus=CpuSet(one.cpus.bits & ~bits)) if one.kind is ContainerKind.INIT else one
                for one in pod.grant.containers
            )
            pods[uid] = replace(pod, grant=replace(pod.grant, containers=containers))
    return replace(state, pods=pods)


def _places_of(one: Hypothesis, uid: str) -> list[int]:
    """Return, per container of the pod, the mask of NUMA nodes that its CPUs may be moved to, 0 if they stay."""
    node, mixed = one.state.node, uid in one.mixed
    containers = one.state.pods[uid].grant.containers
    return [_reached(each, node) if _is_movable(each, mixed, node) else 0 for each in containers]


def _moved(one: Hypothesis, uid: str, numa: int, places: Sequence[int]) -> Hypothesis | None:
    """Return the hypothesis with as many of the pod's spread CPUs on one NUMA node as possible, or ``None`` without a change."""
    node, managers = one.state.node, one.state.managers
    here, containers = node.machine.numa_bits[numa], one.state.pods[uid].grant.containers
    moving = staying = 0
    for each, mask in zip(containers, places, strict=True):
        if mask >> numa & 1:
            moving |= each.cpus.bits
        else:
            staying |= each.cpus.bits
    # Init containers and later containers share CPUs: a CPU is held once and moves in all containers that have it.
    there = moving & ~staying & ~here
    count = min((managers.cpus & here).bit_count(), there.bit_count())
    if not count:
        return None
    taken, left = lowest(managers.cpus & here, count), lowest(there, count)
    place_of = dict(zip(members(left), members(taken), strict=True))
    changed = ManagerState(managers.cpus & ~taken | left, managers.devices, managers.memory)
    state = replace(one.state, managers=changed)
    return with_grant(replace(one, state=state), uid, tuple(elsewhere(each, place_of) for each in containers))


def _is_movable(container: ContainerGrant, mixed: bool, node: KubeletNode) -> bool:
    """
    Return whether the container's CPUs may be on other NUMA nodes. In a mixed pod this is possible for init containers
    only, because a topology showed the CPUs of the other containers.
    """
    return may_lie_otherwise(container, node) and not (mixed and container.kind is not ContainerKind.INIT)


def elsewhere(container: ContainerGrant, place_of: Mapping[int, int]) -> ContainerGrant:
    """Return the container after an exchange of CPUs: ``place_of`` maps an old CPU to its replacement."""
    left = sum(1 << cpu for cpu in place_of)
    bits = container.cpus.bits
    if not bits & left:
        return container
    moved = sum(1 << place_of[cpu] for cpu in members(bits & left))
    return replace(container, cpus=CpuSet(bits & ~left | moved))


def _reached(container: ContainerGrant, node: KubeletNode) -> int:
    """Return the mask of the NUMA nodes that the container's CPUs may be on."""
    if container.numas:
        return container.numas
    machine = node.machine
    mask = container.hint.mask if container.hint is not None else None
    # Without a mask or with align-by-socket, the CPUs may come from any NUMA node.
    if mask is None or node.static_options.align_by_socket:
        return machine.numa_mask
    near = 0
    for numa in members(mask):
        near |= machine.numa_bits.get(numa, 0)
    # CPUs beyond those of the hint's NUMA nodes come from any NUMA node.
    return machine.numa_mask if container.cpus.bits & ~near else mask


def distinct(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """
    Return the hypotheses without duplicates, in order.

    Of equal hypotheses the one with the most loose CPUs stays, because it covers the others, with the least uncertainty.
    """
    there = list(hypotheses)
    if len(there) < 2:
        return there  # the common case, because a signature is expensive
    found: dict[Signature, Hypothesis] = {}
    for one in there:
        key = one.signature
        known = found.get(key)
        if known is None:
            found[key] = one
            continue
        best, less = (one, known) if _loose_cpus(one) > _loose_cpus(known) else (known, one)
        best = standing_for(best, less)
        uncertainty = min(one.uncertainty, known.uncertainty)
        if best.uncertainty != uncertainty:
            best = replace(best, uncertainty=uncertainty)
        found[key] = best
    return list(found.values())


def _loose_cpus(one: Hypothesis) -> int:
    return sum(bits.bit_count() for bits in one.loose.values())


def one_of_each_kind(one: Hypothesis, uids: Iterable[str]) -> Iterator[str]:
    """Yield one of these pods per distinct effect of its removal: the first of several with equal requests and places."""
    known: set[Signature] = set()
    for uid in uids:
        pod = one.state.pods[uid]
        # A pod with unknown CPUs is distinct from all others.
        own = uid if uid in one.spread or uid in one.loose else ""
        kind = (signature(pod.grant, one.state.node), *sorted(pod.requests.items()), own)
        if kind not in known:
            known.add(kind)
            yield uid


def most_cpus(hypotheses: Iterable[Hypothesis]) -> dict[int, int]:
    """Return the maximum free exclusive CPUs by NUMA id over these states."""
    most: dict[int, int] = {}
    for one in hypotheses:
        bits = one.state.managers.cpus
        # Loose CPUs may be free.
        for each in one.loose.values():
            bits |= each
        for uid in one.spread:
            for container in one.state.pods[uid].grant.containers:
                bits |= container.cpus.bits
        for numa, here in one.state.node.machine.numa_bits.items():
            most[numa] = max(most.get(numa, 0), (bits & here).bit_count())
    return most


def with_grant(one: Hypothesis, uid: str, containers: tuple[ContainerGrant, ...]) -> Hypothesis:
    """Return the hypothesis with these containers as the pod's grant."""
    pod = one.state.pods[uid]
    pods = {**one.state.pods, uid: replace(pod, grant=replace(pod.grant, containers=containers))}
    return replace(one, state=replace(one.state, pods=pods))


def holding(after: Hypothesis, more: Mapping[str, int]) -> Hypothesis:
    """Return the hypothesis with these free CPUs loose: init containers of these pods may hold them."""
    held, loose, pods = 0, dict(after.loose), dict(after.state.pods)
    for uid, bits in more.items():
        held |= bits
        loose[uid] = loose.get(uid, 0) | bits
        if uid == SOMEONE:
            continue
        containers = list(pods[uid].grant.containers)
        at = next(at for at, one in enumerate(containers) if one.kind is ContainerKind.INIT)
        containers[at] = replace(containers[at], cpus=CpuSet(containers[at].cpus.bits | bits))
        pods[uid] = replace(pods[uid], grant=replace(pods[uid].grant, containers=tuple(containers)))
    if not held:
        return after
    managers = after.state.managers
    left = ManagerState(managers.cpus & ~held, managers.devices, managers.memory)
    return replace(after, state=replace(after.state, managers=left, pods=pods), loose=loose)


def standing_for(one: Hypothesis, other: Hypothesis) -> Hypothesis:
    """
    Return the first of two hypotheses that differ at most in the owners of loose CPUs, extended to cover the second one.

    Return it unchanged if CPUs with an unknown place are affected.
    """
    more = more_owners(one, other) if one.loose != other.loose else None
    return holding(one, more) if more else one


MOST_WAYS: Final = 64
"""Maximum number of states that one hypothesis may lead to after a departure."""

Unit = Sequence[tuple[Container, ContainerDemand]]
"""Containers that are aligned together."""


class Rest(ValueObject):
    """The sum of what unlocated pods hold: CPU bits, bytes by memory group and type, and device bits by resource."""

    cpus: int
    memory: Mapping[int, Mapping[str, int]]
    devices: Mapping[str, int]


def rest_of(one: Hypothesis) -> Rest:
    """Return the amounts that are in use in a hypothesis, except those of pods with a known placement."""
    node, managers = one.state.node, one.state.managers
    cpus = node.machine.bits & ~node.reserved & ~managers.cpus if node.pins_cpus else 0
    devices = dict(managers.devices)
    memory = {} if managers.memory is None else _in_use(managers.memory)
    cpus &= ~one.loose.get(SOMEONE, 0)
    for pod in one.state.pods.values():
        for given in pod.grant.containers:
            cpus &= ~given.cpus.bits
            for resource, ids in given.devices.items():
                pool = node.devices[resource].devices
                devices[resource] &= ~sum(1 << at for at, device in enumerate(pool) if device.id in ids)
            if given.kind is not ContainerKind.INIT:
                for block in given.memory:
                    if block.mask in memory:
                        memory[block.mask][block.resource] -= block.amount
    return Rest(cpus, memory, devices)


def _in_use(table: MemoryTable) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for numa, mask in table.groups.items():
        sums = found.setdefault(mask, {})
        for kind, amount in table.held[numa].items():
            sums[kind] = sums.get(kind, 0) + amount
    return found


Departed = dict[tuple[str, ...], list[Hypothesis]]
"""States by departed pods, in the order of departure."""


def without(one: Hypothesis, uids: Iterable[str]) -> list[Hypothesis]:
    """Return the result of ``departing`` at once."""
    work = departing(one, uids, {})
    while True:
        try:
            next(work)
        except StopIteration as end:
            states: list[Hypothesis] = end.value
            return states


def departing(one: Hypothesis, uids: Iterable[str], known: Departed) -> Generator[None, None, list[Hypothesis]]:
    """
    Return the hypotheses after these pods have left: several if their placement was not known. Yield ``None`` after each piece of work.

    Pods leave in the order of their uids, whatever the order of ``uids``, so that limits apply alike in each process.
    ``known`` caches the states after departures from this hypothesis, and is extended. Raises ``TooManyWays`` when a
    departure has more than ``MOST_WAYS`` results.
    """
    states = [one]
    away: tuple[str, ...] = ()
    for uid in sorted(uids):
        away = (*away, uid)
        if (found := known.get(away)) is not None:
            states = found
        elif uid in one.unlocated:
            ways = []
            for way in _few(way for state in states for way in _departures(state, uid)):
                ways.append(way)
                yield
            states = distinct(ways)
            yield
        else:
            states = [released(state, uid) for state in states]
        known[away] = states
    return states


def _few(ways: Iterator[Hypothesis]) -> Iterator[Hypothesis]:
    for number, way in enumerate(ways):
        if number >= MOST_WAYS:
            raise TooManyWays
        yield way


def _departures(one: Hypothesis, uid: str) -> Iterator[Hypothesis]:
    """Yield one state per possible placement of the pod, without the pod."""
    demand, node = pod_demand(one.unlocated[uid]), one.state.node
    unlocated = {other: request for other, request in one.unlocated.items() if other != uid}
    found = False
    for grants, left in _places(list(_units(demand.containers, node)), rest_of(one), node):
        found = True
        grant = Grant(demand.qos, tuple(grants))
        managers = _given_back(one.state.managers, grant, left, node)
        yield replace(
            one,
            state=replace(one.state, managers=managers),
            unlocated=unlocated,
            gone={**one.gone, uid: grant},
        )
    # No placement agrees with the sums: the use of the pod stays counted, and the next topology contradicts it.
    if not found:
        yield replace(one, unlocated=unlocated, gone={**one.gone, uid: None})


def _units(containers: Unit, node: KubeletNode) -> Iterator[Unit]:
    # Topologies show nothing of finished init containers. Their CPUs are in ``loose``.
    lasting = [(container, part) for container, part in containers if container.kind is not ContainerKind.INIT]
    if node.config.topology_policy is not KubeletPolicy.NONE and node.config.topology_scope is KubeletScope.POD:
        yield lasting
    else:
        yield from ([each] for each in lasting)


def _places(units: Sequence[Unit], rest: Rest, node: KubeletNode) -> Iterator[tuple[list[ContainerGrant], Rest]]:
    if not units:
        yield [], rest
        return
    ways = _aligned(units[0], rest, node)
    first = next(ways, None)
    if first is not None:
        ways = chain([first], ways)
    elif node.config.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        ways = _anywhere(units[0], rest, node)
    for grants, left in ways:
        for others, end in _places(units[1:], left, node):
            yield [*grants, *others], end


def _aligned(unit: Unit, rest: Rest, node: KubeletNode) -> Iterator[tuple[list[ContainerGrant], Rest]]:
    """
    Yield the placements of the unit on one NUMA node.

    Memory may be in a group of NUMA nodes; the other resources are then on any NUMA node of the group.
    """
    if not node.aligns:
        return
    binds = node.pins_memory and any(part.memory for _, part in unit)
    if not (binds or _needs_a_place(unit, node)):
        yield [_grant(container, 0, (), {}) for container, _ in unit], rest
        return
    tried: set[tuple[int, int, int]] = set()
    for cell in list(rest.memory) if binds else [1 << numa for numa in node.machine.numa_ids]:
        for numa in members(cell) if _needs_a_place(unit, node) else members(cell)[:1]:
            for cpus in _cpus_near(unit, rest.cpus, node, numa):
                # Without devices, the NUMA node of the hint within a socket does not matter.
                place = (cell if binds else 0, cpus, numa if _has_devices(unit, node) else 0)
                if place in tried:
                    continue
                tried.add(place)
                for grants, left in _taken(unit, replace(rest, cpus=cpus), node, cell, 1 << numa):
                    yield grants, replace(left, cpus=left.cpus | rest.cpus & ~cpus)


def _cpus_near(unit: Unit, cpus: int, node: KubeletNode, numa: int) -> Iterator[int]:
    """
    Yield the CPUs that a unit aligned to the NUMA node may have.

    With ``align-by-socket``, these are all ways to take CPUs of the socket.
    """
    machine, near = node.machine, node.machine.numa_bits.get(numa, 0)
    socket = next((bits for bits in machine.socket_bits.values() if bits & near), near)
    count = sum(part.cpus for _, part in unit) if node.pins_cpus else 0
    # Best-effort does not reject pods for the NUMA nodes of CPUs.
    by_socket = node.static_options.align_by_socket and node.config.topology_policy in STRICT
    if not count or socket == near or not by_socket:
        yield cpus & near
    else:
        yield from from_each([cpus & here for here in machine.numa_bits.values() if here & socket], count)


def _has_devices(unit: Unit, node: KubeletNode) -> bool:
    return any(count and name in node.devices for _, part in unit for name, count in part.devices.items())


def _needs_a_place(unit: Unit, node: KubeletNode) -> bool:
    return _has_devices(unit, node) or (node.pins_cpus and any(part.cpus for _, part in unit))


def _anywhere(unit: Unit, rest: Rest, node: KubeletNode) -> Iterator[tuple[list[ContainerGrant], Rest]]:
    """Yield a placement for each memory group, with CPUs and devices from the lowest NUMA nodes that have free ones."""
    for cell in rest.memory or (0,):
        yield from _taken(unit, rest, node, cell, node.machine.numa_mask)


def _taken(
    unit: Unit, rest: Rest, node: KubeletNode, cell: int, near: int
) -> Iterator[tuple[list[ContainerGrant], Rest]]:
    """
    Yield possible grants of the unit, with memory in ``cell`` and devices on ``near``, each with the remaining sums.

    Yields nothing if the sums are smaller than the request.
    """
    spend()
    cpus, memory = rest.cpus, {mask: dict(kinds) for mask, kinds in rest.memory.items()}
    held: list[tuple[int, tuple[MemoryBlock, ...]]] = []
    for _, part in unit:
        count = part.cpus if node.pins_cpus else 0
        if cpus.bit_count() < count:
            return
        own = lowest(cpus, count)
        cpus &= ~own
        blocks = tuple(
            MemoryBlock(kind, amount, cell)
            for kind, amount in without_zeros(part.memory or {}).items()
            if node.pins_memory
        )
        for block in blocks:
            memory[cell][block.resource] = memory[cell].get(block.resource, 0) - block.amount
            if memory[cell][block.resource] < 0:
                return
        held.append((own, blocks))
    wants = [
        (at, name, count)
        for at, (_, part) in enumerate(unit)
        for name, count in part.devices.items()
        if count and name in node.devices
    ]
    for given, devices in _handed_out(wants, rest, node, near):
        grants = [
            _grant(container, own, blocks, {name: ids for (to, name), ids in given.items() if to == at})
            for at, ((container, _), (own, blocks)) in enumerate(zip(unit, held, strict=True))
        ]
        yield grants, Rest(cpus, memory, devices)


def _handed_out(
    wants: Sequence[tuple[int, str, int]], rest: Rest, node: KubeletNode, near: int
) -> Iterator[tuple[dict[tuple[int, str], tuple[str, ...]], Mapping[str, int]]]:
    """Yield the devices for ``wants`` by container and resource, in every distinct way, and the remaining devices."""
    if not wants:
        yield {}, rest.devices
        return
    (at, name, count), *others = wants
    pool = node.devices[name]
    for taken in _which(name, count, rest, pool, near):
        left = replace(rest, devices={**rest.devices, name: rest.devices[name] & ~taken})
        for given, devices in _handed_out(others, left, node, near):
            yield {(at, name): pool.ids(taken), **given}, devices


def _which(name: str, count: int, rest: Rest, pool: DevicePool, near: int) -> Iterator[int]:
    """Yield the devices that a container aligned to ``near`` may have, as bits. Equal devices are taken in one order only."""
    # Devices near no NUMA node are allocated to pods on any. Devices near several NUMA nodes may be near this one.
    fitting = rest.devices[name] & (pool.near(near) if pool.hosts and not pool.assumed else -1)
    if fitting.bit_count() >= count:
        yield lowest(fitting, count)


def _grant(
    container: Container, cpus: int, memory: tuple[MemoryBlock, ...], devices: dict[str, tuple[str, ...]]
) -> ContainerGrant:
    return ContainerGrant(
        name=container.name, kind=container.kind, cpus=CpuSet(cpus), memory=memory, devices=devices, hint=None
    )


def _given_back(managers: ManagerState, grant: Grant, left: Rest, node: KubeletNode) -> ManagerState:
    """Return the managers after the release of this grant. ``left`` are the resources of the other unlocated pods."""
    after = managers.copy()
    for given in grant.containers:
        after.cpus |= given.cpus.bits
        for resource, ids in given.devices.items():
            pool = node.devices[resource].devices
            after.devices[resource] &= ~sum(1 << at for at, device in enumerate(pool) if device.id in ids)
        for block in given.memory:
            if after.memory is not None:
                after.memory.credit(block)
    if after.memory is not None:
        for mask in {block.mask for given in grant.containers for block in given.memory}:
            # The number of blocks of unlocated pods is not known, so they count as a single block.
            if not any(left.memory[mask].values()):
                after.memory.end_block(mask)
    return after


def with_one_away(one: Hypothesis) -> Iterator[Hypothesis]:
    """
    Yield the states after the departure of any single pod that holds resources.

    Such a pod may have left unseen from any possible placement. Pods of one kind give a single state.
    """
    for each in without(one, one.leaving):
        yield each
        tried: list[PodRequest] = []
        for uid, request in each.unlocated.items():
            if request not in tried:
                tried.append(request)
                yield from without(each, [uid])
        for uid in one_of_each_kind(each, pods_that_hold(each)):
            yield released(each, uid)


def pods_that_hold(one: Hypothesis) -> Iterator[str]:
    """Yield the pods that hold resources of the managers."""
    for uid, pod in one.state.pods.items():
        if any(given.cpus or given.devices or given.memory for given in pod.grant.containers):
            yield uid


def without_leaving(one: Hypothesis, demand: PodDemand) -> Iterator[Hypothesis]:
    """
    Yield the states without the pods in ``leaving`` if more room for one container may leave less for the next container.

    That is possible if several containers are aligned separately.
    """
    node = one.state.node
    if not (one.leaving and node.aligns and node.config.topology_scope is KubeletScope.CONTAINER):
        return
    if sum(1 for _, part in demand.containers if part.cpus or part.memory or part.devices) > 1:
        yield from without(one, one.leaving)
