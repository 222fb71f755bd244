"""A state that the kubelet may be in, as far as API objects tell, with what stays open in it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.admit import Trust
from koord_numa.core.kubelet.budget import spend
from koord_numa.core.kubelet.demand import PodDemand
from koord_numa.core.kubelet.state import (
    ContainerGrant,
    Device,
    DevicePool,
    Grant,
    KubeletNode,
    KubeletState,
    ManagerState,
    MemoryTable,
)
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import APP, INIT
from koord_numa.core.value_objects import ValueObject, replace, value_field

Counts = Mapping[int, int]
"""Numbers of devices by NUMA id."""


class SharedPool(ValueObject, gc=False):
    """The devices of one resource: how many are near each NUMA node, and how many there are."""

    counts: Counts
    total: int


def deal(free: Counts, count: int) -> list[int]:
    """
    Return masks of NUMA nodes for ``count`` devices of which so many are near each NUMA node.

    They exist if no NUMA node has more than ``count`` and the numbers add up to at least ``count`` (Gale and Ryser). Where they do not
    exist, some devices are near no NUMA node.
    """
    masks = [0] * count
    place = 0
    # No NUMA node has more than ``count``, so that none comes twice to one device.
    for numa, each in sorted(free.items(), key=lambda item: (-item[1], item[0])):
        for _ in range(min(max(0, each), count)):
            masks[place % count] |= 1 << numa
            place += 1
    return masks


def fewest_free(shared: SharedPool, in_use: int) -> dict[int, int]:
    """Return how many devices are free near each NUMA node if all in use are near it."""
    return {numa: max(0, count - in_use) for numa, count in shared.counts.items()}


@lru_cache(maxsize=4096)
def assumed_pool(name: str, near: tuple[int, ...]) -> DevicePool:
    """Return a pool whose devices are taken to be near these NUMA nodes."""
    devices = tuple(Device(f"{name}-{place}", mask) for place, mask in enumerate(near))
    return DevicePool(devices, assumed=True)


def most_used(name: str, zones: Sequence[Zone], there: int, *, in_full: bool | None) -> dict[int, int]:
    """
    By NUMA node how many of the devices in use are near it at most; ``there`` is how many devices there are.

    NFD counts a device that is near the NUMA nodes m and n on m alone, once for each NUMA node near it: at least for m, for n, and for
    each that all devices are near. ``in_full`` is None where it is not known whether an exporter counts so.
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
    # Counted in full, a device in use shows on each NUMA node that all devices are near.
    most = max(used.values(), default=0)
    if in_full is None and all(used[numa] == most for numa in members(every)):
        return {numa: max(count, used[numa]) for numa, count in found.items()}
    return found


def _in_use(zone: Zone, name: str) -> int:
    return zone.allocatable[name] - zone.available.get(name, 0) + zone.overdrawn.get(name, 0)


def places_of(node: KubeletNode) -> tuple[int, ...]:
    """The CPUs, as bits, of each NUMA node; of the machine where nothing is aligned, as it does not matter there which ones are free."""
    numas = tuple(node.machine.numa_bits.values())
    return numas if node.aligns else (sum(numas),)


def may_lie_otherwise(one: ContainerGrant, node: KubeletNode) -> bool:
    """Are its CPUs taken from several NUMA nodes, in numbers that depend on CPU ids?"""
    # With one NUMA node or real ids there is only one place.
    if not one.cpus or node.ids_are_real or len(node.machine.numa_ids) == 1:
        return False
    if one.numas:
        return one.numas & (one.numas - 1) != 0
    mask = one.hint.mask if one.hint is not None else None
    # Best-effort takes CPUs beyond the hint, too: of which NUMA nodes depends on sockets and CPU ids.
    if mask is None or mask.bit_count() > 1 or one.cpus.bits & ~node.machine.numa_bits.get(mask.bit_length() - 1, 0):
        return True
    return node.static_options.align_by_socket and shares_socket(node, mask)


def shares_socket(node: KubeletNode, mask: int) -> bool:
    """Does a socket of these NUMA nodes have others, too? Only then CPUs are taken elsewhere by align-by-socket."""
    machine = node.machine
    here = 0
    for numa in members(mask):
        here |= machine.numa_bits.get(numa, 0)
    return any(bits & here and bits & ~here for bits in machine.socket_bits.values())


def reached(container: ContainerGrant, node: KubeletNode) -> int:
    """The NUMA nodes, as a mask, from which its CPUs may come."""
    if container.numas:
        return container.numas
    machine = node.machine
    mask = container.hint.mask if container.hint is not None else None
    if mask is None:
        return machine.numa_mask
    near = sum(machine.numa_bits.get(numa, 0) for numa in members(mask))
    if node.static_options.align_by_socket:
        near = sum(bits for bits in machine.socket_bits.values() if bits & near)
    # What the hint's NUMA nodes do not have comes from any.
    if container.cpus.bits & ~near:
        return machine.numa_mask
    return sum(1 << numa for numa, bits in machine.numa_bits.items() if bits & near)


Signature = tuple[object, ...]
"""Where a pod sits: equal for grants that no topology could tell apart."""


SOMEONE: Final = ""
"""Who holds loose CPUs of which it is not known whose they are: any of the unlocated pods."""


class Hypothesis(ValueObject):
    """
    ``state`` is what the kubelet's managers hold. ``loose`` are, by pod, CPU bits that its finished init containers hold here and may have
    been taken over by its later containers in truth; one that is of several pods is held by one of them at most (``variants.py``).
    ``spread`` are pods whose CPUs may be dealt out over NUMA nodes otherwise; of ``mixed`` ones a topology has told the sum for every NUMA
    node, but not which of them holds it.

    ``gone`` has the grants of pods that left and that a late topology may still show, ``None`` where their place was not known.
    ``unplaced`` are pods whose place is not known, whose use is only in the sums. ``unlocated`` are pods, with what they ask for, of which
    the sum is known that they hold on every NUMA node (``departures.py``): ``state`` holds it for them, and does not list them.
    ``leaving`` are those of them that are gone, whose part of the sums is not known.
    ``unexplained`` are pods whose fate is another one than this state had foreseen: something has happened that no event has shown yet.
    ``options`` names what is assumed of the configuration although it is unlikely and not published. ``uncertainty`` is by how many seconds
    news must have been late in all for it to be true: where there are too many hypotheses the most doubtful are given up.

    ``sharing`` are the resources whose devices may be near several NUMA nodes; the masks in the state's pools are one way for them.
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
    sharing: Mapping[str, SharedPool] = value_field(default_factory=dict)

    def has(self, uid: str) -> bool:
        """Did the kubelet admit this pod, and is it still there?"""
        return uid in self.state.pods or uid in self.unplaced or uid in self.unlocated

    @property
    def signature(self) -> Signature:
        """Equal for hypotheses that differ in nothing that matters."""
        spend(2)
        memory = self.state.managers.memory
        groups: Signature = ()
        if memory is not None:
            groups = tuple(memory.groups.values())
            # Groups of several NUMA nodes make the amounts matter, else their sums per NUMA node follow from the pods.
            if any(group.bit_count() > 1 for group in memory.groups.values()):
                # What a block has of each of its NUMA nodes depends on the past.
                groups = (*groups, *free_memory(memory))
        return (
            self.located,
            self.surely_held,  # which no topology shows
            groups,
            tuple(sorted(self.unplaced)),
            # What unlocated pods hold follows from no grant, nor does what pods leave counted whose place is not known.
            (*sorted(self.unlocated), self.room_held) if self.unlocated or None in self.gone.values() else (),
            tuple(sorted(self.unexplained)),
            self.mixed,
            self.options,
            variant_of(self.state.node),
        )

    @property
    def located(self) -> frozenset[tuple[str, Signature]]:
        """The pods whose place is known, by uid, with what they have."""
        return frozenset((uid, signature(pod.grant, self.state.node)) for uid, pod in self.state.pods.items())

    @property
    def surely_held(self) -> frozenset[tuple[str, tuple[int, ...]]]:
        """By pod, how many CPUs of each place its init containers surely hold that no later container has."""
        return frozenset(self._held_by_init())

    def _held_by_init(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for uid, pod in self.state.pods.items():
            if len(pod.grant.containers) == 1 and pod.grant.containers[0].kind is APP:
                continue  # as of most pods
            if bits := held_by_init(pod.grant) & ~self.loose.get(uid, 0):
                yield uid, tuple([(bits & place).bit_count() for place in places_of(self.state.node)])

    @property
    def room(self) -> Signature:
        """Equal for hypotheses that leave the same room on every NUMA node, whichever pods hold the rest."""
        # Spread pods may lie otherwise, so that equal sums do not make equal room.
        return self.signature if self.spread else self.room_held

    @property
    def room_held(self) -> Signature:
        """As ``room``, whether pods may lie otherwise or not."""
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
            # Loose CPUs may be held or free: they belong to the room on either side, and so does how many may be held together.
            cpus_by_numa(loose, node),
            tuple(
                # Only what is near matters of a device, not its made-up id.
                tuple(sorted(node.devices[name].devices[at].near for at in members(bits)))
                for name, bits in free.items()
            ),
            ()
            if memory is None
            else (free_memory(memory), *memory.groups.values(), *map(bool, memory.blocks.values())),
        )


def variant_of(node: KubeletNode) -> tuple[int, int]:
    """Equal for nodes that differ at most in which devices are near which NUMA nodes."""
    # By identity: variants of a node are made once, and comparing machines would cost more than all the rest.
    return id(node.machine), id(node.config)


def free_memory(table: MemoryTable) -> tuple[int, ...]:
    """The bytes that are free, by NUMA node and type."""
    return tuple(amount for amounts in table.free.values() for amount in amounts.values())


def signature(grant: Grant, node: KubeletNode) -> Signature:
    """Which NUMA nodes every container uses, and how much of each. Worked out once for a grant, which belongs to one node."""
    if not grant.place:
        # Grants are frozen; the cache is set past the dataclass, as a grant is asked for its signature in every comparison.
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
    """The CPU bits of init containers that no later container has."""
    init = later = 0
    for one in grant.containers:
        if one.kind is INIT:
            init |= one.cpus.bits
        else:
            later |= one.cpus.bits
    return init & ~later


def _place(one: ContainerGrant, node: KubeletNode) -> tuple[int, ...]:
    """
    How many CPUs an init container still holds no topology shows: only where they are counts. Where CPUs are dealt out in numbers that
    are unknown, only their sum and the NUMA nodes that they may be of are told apart.
    """
    if may_lie_otherwise(one, node):
        # Packed into sockets its CPUs are asked about on every NUMA node but where that is worked out.
        packs = node.static_options.align_by_socket and not node.distributes_across_numa
        return (len(one.cpus), one.numas if packs else reached(one, node))
    counts = cpus_by_numa(one.cpus.bits, node)
    # An init container's count is cut to "some", as no topology shows it.
    return tuple(min(count, 1) for count in counts) if one.kind is INIT else counts


def cpus_by_numa(bits: int, node: KubeletNode) -> tuple[int, ...]:
    """How many of these CPUs are on each NUMA node, in the order of the machine's."""
    return tuple([(bits & here).bit_count() for here in node.machine.numa_bits.values()])


def _near(node: KubeletNode, resource: str, ids: Iterable[str]) -> Iterator[int]:
    wanted = set(ids)
    pool = node.devices[resource]
    # What shared devices are near is in ``Hypothesis.reach``; of these only the number is told apart here.
    return (0 if pool.assumed else device.near for device in pool.devices if device.id in wanted)


def pins_init_cpus(demand: PodDemand, node: KubeletNode) -> bool:
    """Is it open which of an init container's CPUs later containers get again? Only where later ones ask for some."""
    if len(demand.counts) < 2:  # nothing to take over, as in most pods
        return False
    taking = [container.kind for container, part in demand.containers if part.cpus]
    return node.pins_cpus and not node.ids_are_real and INIT in taking[:-1]


def released(before: Hypothesis, uid: str) -> Hypothesis:
    # An explanation that was missing is not needed any more once the pod is gone.
    """The hypothesis without this pod. What an unplaced pod held stays counted until a topology shows it free."""
    spend()
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
        # Of mixed pods only the sum was known: without one of them the others' places are open again.
        spread=(before.spread | before.mixed if uid in before.mixed else before.spread) - {uid},
        mixed=frozenset() if uid in before.mixed else before.mixed,
        gone={**before.gone, uid: pod.grant},
    )


def _still_held(state: KubeletState, own: int, loose: Iterable[int]) -> KubeletState:
    """The state with those of a pod's loose CPUs held that another one's init container may hold as well."""
    kept = sum({1 << cpu for bits in loose for cpu in members(bits & own)}) if own else 0
    if not kept:
        return state
    managers = state.managers
    return replace(state, managers=ManagerState(managers.cpus & ~kept, managers.devices, managers.memory))
