"""
One state that a kubelet may be in: where it put every pod that was bound to its node, replayed in the order of the binds.

Theory. A kubelet decides by its state and its configuration alone, so its state follows from what reached it, in order. What is unknown
leaves a choice, and each choice is a hypothesis of its own: the moment at which a pod left, the CPUs that a container took over from an
init container, how CPUs were dealt out over NUMA nodes. Every hypothesis is a state that the kubelet can really be in; a pod's fate or a
published topology that contradicts it rules it out.

Example: NUMA node 0 has 4 CPUs free, node 1 has 16. Pod a (8 CPUs) is bound and goes to node 1. Then pod b, which held 8 CPUs of node 0, is
seen gone. It may have left before a came: then a is on node 0. Both hypotheses stand until a topology shows a's CPUs on one of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.admit import Trust
from koord_numa.core.kubelet.budget import spend
from koord_numa.core.kubelet.demand import PodDemand
from koord_numa.core.kubelet.inference.shared_devices import SharedPool
from koord_numa.core.kubelet.spreading.places import may_lie_otherwise, places_of, reached
from koord_numa.core.kubelet.state import ContainerGrant, Grant, KubeletNode, KubeletState, ManagerState, MemoryTable
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import APP, INIT
from koord_numa.core.value_objects import ValueObject, replace, value_field

Signature = tuple[object, ...]
"""Where a pod sits: equal for grants that no topology could tell apart."""


SOMEONE: Final = ""
"""Who holds loose CPUs of which it is not known whose they are: any of the unlocated pods."""


class Hypothesis(ValueObject):
    """
    ``state`` is what the kubelet's managers hold. ``loose`` are, by pod, CPU bits that its finished init containers hold here and may have
    been taken over by its later containers in truth; one that is of several pods is held by one of them at most (``spreading/owners.py``).
    ``spread`` are pods whose CPUs may be dealt out over NUMA nodes otherwise; of ``mixed`` ones a topology has told the sum for every NUMA
    node, but not which of them holds it.

    ``gone`` has the grants of pods that left and that a late topology may still show, ``None`` where their place was not known.
    ``unplaced`` are pods whose place is not known, whose use is only in the sums. ``unlocated`` are pods, with what they ask for, of which
    the sum is known that they hold on every NUMA node (``unlocated.py``): ``state`` holds it for them, and does not list them.
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
