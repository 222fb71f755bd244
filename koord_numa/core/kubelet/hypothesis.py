"""
Hypotheses: states that the kubelet may be in according to API objects, with the facts that are not known.

The module also has the pools of devices whose NUMA nodes are not published, the keys that compare placements, and the
release of a pod.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from koord_numa.core.cpuset import members
from koord_numa.core.kubelet.admit import Trust
from koord_numa.core.kubelet.demand import PodDemand
from koord_numa.core.kubelet.state import (
    ContainerGrant,
    DevicePool,
    Grant,
    KubeletNode,
    KubeletState,
    ManagerState,
    MemoryTable,
    PluginDevice,
    reached_by,
    spend,
)
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import APP, INIT
from koord_numa.core.value_objects import ValueObject, replace, value_field

Counts = Mapping[int, int]
"""Numbers of devices by NUMA id."""


class SharedDevices(ValueObject, gc=False):
    """Number of devices of one resource: near each NUMA node, and in total. A device may be near several NUMA nodes."""

    counts: Counts
    total: int


def deal(free: Counts, count: int) -> list[int]:
    """
    Return one mask of NUMA nodes per device for ``count`` devices, with the given numbers of devices near each NUMA node.

    Such masks exist if no NUMA node has more than ``count`` devices and the numbers add up to at least ``count`` (Gale
    and Ryser). If they do not exist, some devices are near no NUMA node.
    """
    masks = [0] * count
    place = 0
    # No NUMA node has more than ``count`` devices, so no device gets the same NUMA node twice.
    for numa, each in sorted(free.items(), key=lambda item: (-item[1], item[0])):
        for _ in range(min(max(0, each), count)):
            masks[place % count] |= 1 << numa
            place += 1
    return masks


def fewest_free(shared: SharedDevices, in_use: int) -> dict[int, int]:
    """Return the minimum number of free devices near each NUMA node: all devices in use are near it."""
    return {numa: max(0, count - in_use) for numa, count in shared.counts.items()}


@lru_cache(maxsize=4096)
def assumed_pool(name: str, near: tuple[int, ...]) -> DevicePool:
    """Return a pool whose devices are assumed to be near these NUMA nodes."""
    devices = tuple(PluginDevice(f"{name}-{place}", mask) for place, mask in enumerate(near))
    return DevicePool(devices, assumed=True)


def most_used(name: str, zones: Sequence[Zone], there: int, *, in_full: bool | None) -> dict[int, int]:
    """
    Return by NUMA node the maximum number of devices in use near it. ``there`` is the total number of devices.

    NFD counts a device near the NUMA nodes m and n on m alone, once for each NUMA node near it: at least for m, for n,
    and for each NUMA node that all devices are near. ``in_full`` is whether an exporter counts a device on each NUMA
    node near it, ``None`` if that is not known.
    """
    zones = [zone for zone in zones if zone.allocatable.get(name)]
    used = {zone.numa: _in_use(zone, name) for zone in zones}
    if in_full:
        return used
    every = sum(1 << zone.numa for zone in zones if zone.allocatable[name] >= there)
    found = {
        numa: sum(max(0, count) // (every | 1 << numa | 1 << last).bit_count() for last, count in used.items())
        for numa in used
    }
    # If counted in full, a device in use shows on each NUMA node that all devices are near.
    most = max(used.values(), default=0)
    if in_full is None and all(used[numa] == most for numa in members(every)):
        return {numa: max(count, used[numa]) for numa, count in found.items()}
    return found


def _in_use(zone: Zone, name: str) -> int:
    return zone.allocatable[name] - zone.available.get(name, 0) + zone.overdrawn.get(name, 0)


def places_of(node: KubeletNode) -> tuple[int, ...]:
    """
    Return the CPUs, as bits, of each NUMA node; without alignment, those of the machine.

    Without alignment, the NUMA nodes of free CPUs do not matter.
    """
    numas = tuple(node.machine.numa_bits.values())
    return numas if node.aligns else (sum(numas),)


def may_lie_otherwise(one: ContainerGrant, node: KubeletNode) -> bool:
    """Return whether the CPUs are taken from several NUMA nodes in numbers that depend on CPU IDs."""
    # With one NUMA node or real IDs, only one placement is possible.
    if not one.cpus or node.ids_are_real or len(node.machine.numa_ids) == 1:
        return False
    if one.numas:
        return one.numas & (one.numas - 1) != 0
    mask = one.hint.mask if one.hint is not None else None
    # Best-effort may exceed the hint. The NUMA nodes of these CPUs depend on sockets and CPU IDs.
    if mask is None or mask.bit_count() > 1 or one.cpus.bits & ~node.machine.numa_bits.get(mask.bit_length() - 1, 0):
        return True
    return node.static_options.align_by_socket and shares_socket(node, mask)


def shares_socket(node: KubeletNode, mask: int) -> bool:
    """Return whether a socket of these NUMA nodes has other NUMA nodes, too. Only then align-by-socket takes CPUs of other NUMA nodes."""
    machine = node.machine
    here = 0
    for numa in members(mask):
        here |= machine.numa_bits.get(numa, 0)
    return any(bits & here and bits & ~here for bits in machine.socket_bits.values())


def reached(container: ContainerGrant, node: KubeletNode) -> int:
    """Return the NUMA nodes, as a mask, from which the container's CPUs may come."""
    if container.numas:
        return container.numas
    return reached_by(container, node)


Signature = tuple[object, ...]
"""A key of a placement. Equal for grants that no topology can distinguish."""


SOMEONE: Final = ""
"""Owner of loose CPUs whose pod is not known: any of the unlocated pods."""


class Hypothesis(ValueObject):
    """
    A state that the kubelet may be in. ``state`` is what the managers hold.

    ``loose`` are CPU bits by pod that finished init containers hold in ``state`` and that later containers of the pod
    may have reused. A CPU that is loose for several pods is held by at most one of them (``variants.py``). ``spread``
    are pods whose CPUs may be split over NUMA nodes in other numbers. ``mixed`` are pods of which a topology showed
    only the sum per NUMA node, not the share of each pod.

    ``gone`` has the grants of pods that left and that a late topology may still show, ``None`` if the placement was not
    known. ``unplaced`` are pods without a known placement, whose use is only in the sums. ``unlocated`` are pods, with
    their requests, whose total use per NUMA node is known (``variants.without``): ``state`` holds this use but does not
    list the pods. ``leaving`` are unlocated pods that are gone, whose part of the sums is not known.

    ``unexplained`` are pods whose verdict differs from the prediction of this state, because of an event that has not
    been seen. ``options`` are unlikely kubelet options that are assumed and not published. ``uncertainty`` is the total
    delay of events, in seconds, that the state requires. If there are too many hypotheses, those with the highest
    uncertainty are given up. ``sharing`` are resources whose devices may be near several NUMA nodes. The masks in the
    pools of ``state`` are one possible assignment.
    """

    state: KubeletState
    loose: Mapping[str, int] = value_field(default_factory=dict)
    spread: frozenset[str] = frozenset()
    mixed: frozenset[str] = frozenset()
    gone: Mapping[str, Grant | None] = value_field(default_factory=dict)
    unplaced: frozenset[str] = frozenset()
    unlocated: Mapping[str, PodRequest] = value_field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    unexplained: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()
    trust: Trust = Trust.EXACT
    uncertainty: float = 0.0
    sharing: Mapping[str, SharedDevices] = value_field(default_factory=dict)

    def has(self, uid: str) -> bool:
        """Return whether the kubelet admitted this pod and still has it."""
        return uid in self.state.pods or uid in self.unplaced or uid in self.unlocated

    @property
    def signature(self) -> Signature:
        """A key that is equal for hypotheses without relevant differences."""
        spend(2)
        memory = self.state.managers.memory
        groups: Signature = ()
        if memory is not None:
            groups = tuple(memory.groups.values())
            # Without groups of several NUMA nodes, the sums per NUMA node follow from the pods.
            if any(group.bit_count() > 1 for group in memory.groups.values()):
                # The share of each NUMA node in a block depends on earlier allocations.
                groups = (*groups, *free_memory(memory))
        return (
            self.located,
            self.surely_held,  # Not shown by topologies.
            groups,
            tuple(sorted(self.unplaced)),
            # No grant explains the use of unlocated pods and of departed pods without a known placement.
            (*sorted(self.unlocated), self.room_held) if self.unlocated or None in self.gone.values() else (),
            tuple(sorted(self.unexplained)),
            self.mixed,
            self.options,
            variant_of(self.state.node),
        )

    @property
    def located(self) -> frozenset[tuple[str, Signature]]:
        """The pods with a known placement, by uid, with their placements."""
        return frozenset((uid, signature(pod.grant, self.state.node)) for uid, pod in self.state.pods.items())

    @property
    def surely_held(self) -> frozenset[tuple[str, tuple[int, ...]]]:
        """The number of CPUs per NUMA node, by pod, that only init containers certainly hold."""
        return frozenset(self._held_by_init())

    def _held_by_init(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for uid, pod in self.state.pods.items():
            if len(pod.grant.containers) == 1 and pod.grant.containers[0].kind is APP:
                continue  # Shortcut for most pods.
            if bits := held_by_init(pod.grant) & ~self.loose.get(uid, 0):
                yield uid, tuple([(bits & place).bit_count() for place in places_of(self.state.node)])

    @property
    def room(self) -> Signature:
        """A key that is equal for hypotheses with the same free amounts on every NUMA node, whichever pods hold the rest."""
        # The CPUs of spread pods may be on other NUMA nodes, so equal sums do not imply equal room.
        return self.signature if self.spread else self.room_held

    @property
    def room_held(self) -> Signature:
        """The same key as ``room``, but spread pods are assumed to be placed as in ``state``."""
        spend()
        node, managers = self.state.node, self.state.managers
        loose = 0
        for bits in self.loose.values():
            loose |= bits
        memory = managers.memory
        free = {name: pool.healthy & ~managers.devices[name] for name, pool in node.devices.items() if not pool.assumed}
        return (
            variant_of(node),
            self.options,
            tuple(bits.bit_count() for bits in managers.devices.values()),
            cpus_by_numa(managers.cpus, node),
            # Loose CPUs may be held or free, so their number is part of the room.
            cpus_by_numa(loose, node),
            tuple(
                # Only the NUMA nodes of a device matter, because its ID is made up.
                tuple(sorted(node.devices[name].devices[at].near for at in members(bits)))
                for name, bits in free.items()
            ),
            ()
            if memory is None
            else (free_memory(memory), *memory.groups.values(), *map(bool, memory.blocks.values())),
        )


def variant_of(node: KubeletNode) -> tuple[int, int]:
    """Return a key that is equal for nodes that differ at most in the NUMA nodes of their devices."""
    # By identity: variants of a node are created once, and comparing machines is expensive.
    return id(node.machine), id(node.config)


def free_memory(table: MemoryTable) -> tuple[int, ...]:
    """Return the free bytes by NUMA node and type."""
    return tuple(amount for amounts in table.free.values() for amount in amounts.values())


def signature(grant: Grant, node: KubeletNode) -> Signature:
    """
    Return the NUMA nodes that each container uses, with amounts.

    The result is cached in the grant, because a grant belongs to one node.
    """
    if not grant.place:
        # Grants are frozen, so the cache is set with ``object.__setattr__``. Every comparison reads the signature.
        object.__setattr__(grant, "place", (_signature(grant, node),))
    return grant.place


def _signature(grant: Grant, node: KubeletNode) -> Signature:
    return tuple(
        (
            one.name,
            _place(one, node),
            tuple((block.resource, block.mask) for block in one.memory if block.amount),
            tuple((name, tuple(sorted(_near(node, name, ids)))) for name, ids in sorted(one.devices.items())),
        )
        for one in grant.containers
    )


def held_by_init(grant: Grant) -> int:
    """Return the CPU bits of init containers that no later container has."""
    init = later = 0
    for one in grant.containers:
        if one.kind is INIT:
            init |= one.cpus.bits
        else:
            later |= one.cpus.bits
    return init & ~later


def _place(one: ContainerGrant, node: KubeletNode) -> tuple[int, ...]:
    """
    Return a key of the NUMA nodes of a container's CPUs.

    No topology shows how many CPUs an init container still holds, so its counts are cut to 1. If the split of CPUs over
    NUMA nodes is not known, the key has only their sum and the NUMA nodes that they may come from.
    """
    if may_lie_otherwise(one, node):
        # With CPUs packed into sockets, only known NUMA nodes (``numas``) are compared.
        packs = node.static_options.align_by_socket and not node.distributes_across_numa
        return (len(one.cpus), one.numas if packs else reached(one, node))
    if node.ids_are_real:
        return tuple([(one.cpus.bits & place).bit_count() for place in places_of(node)])
    counts = cpus_by_numa(one.cpus.bits, node)
    # No topology shows the count of an init container.
    return tuple(min(count, 1) for count in counts) if one.kind is INIT else counts


def cpus_by_numa(bits: int, node: KubeletNode) -> tuple[int, ...]:
    """Return the number of these CPUs on each NUMA node, in the order of the machine."""
    return tuple([(bits & here).bit_count() for here in node.machine.numa_bits.values()])


def _near(node: KubeletNode, resource: str, ids: Iterable[str]) -> Iterator[int]:
    wanted = set(ids)
    pool = node.devices[resource]
    # The NUMA nodes of shared devices are in ``Hypothesis.sharing``. Here, only their number counts.
    return (0 if pool.assumed else device.near for device in pool.devices if device.id in wanted)


def pins_init_cpus(demand: PodDemand, node: KubeletNode) -> bool:
    """
    Return whether it is not known which CPUs of an init container later containers reuse. Possible only if later containers ask for CPUs.
    """
    if len(demand.counts) < 2:  # No CPU reuse, as in most pods.
        return False
    taking = [container.kind for container, part in demand.containers if part.cpus]
    return node.pins_cpus and not node.ids_are_real and INIT in taking[:-1]


def released(before: Hypothesis, uid: str) -> Hypothesis:
    """
    Return the hypothesis without this pod.

    The use of an unplaced pod stays counted until a topology shows it free.
    """
    spend()
    # A departed pod needs no explanation.
    if uid in before.unexplained:
        before = replace(before, unexplained=before.unexplained - {uid})
    if uid in before.unplaced:
        return replace(before, unplaced=before.unplaced - {uid}, gone={**before.gone, uid: None})
    pod = before.state.pods.get(uid)
    if pod is None:
        return before
    loose = {other: bits for other, bits in before.loose.items() if other != uid} if before.loose else before.loose
    after, own = before.state.without(uid), before.loose.get(uid, 0)
    return replace(
        before,
        state=_still_held(after, own, loose.values()) if own else after,
        loose=loose,
        # Only the sum of mixed pods is known. After a departure, the placements of the others are not known.
        spread=(before.spread | before.mixed if uid in before.mixed else before.spread) - {uid},
        mixed=frozenset() if uid in before.mixed else before.mixed,
        gone={**before.gone, uid: pod.grant},
    )


def _still_held(state: KubeletState, own: int, loose: Iterable[int]) -> KubeletState:
    """
    Return the state after the loose CPUs of a pod are held that an init container of another pod may hold as well.

    ``own`` are the loose CPUs of the pod as bits, ``loose`` those of the other pods.
    """
    kept = sum({1 << cpu for bits in loose for cpu in members(bits & own)}) if own else 0
    if not kept:
        return state
    managers = state.managers
    return replace(state, managers=ManagerState(managers.cpus & ~kept, managers.devices, managers.memory))
