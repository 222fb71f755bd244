"""
Koordinator's choice of CPUs for a pod among the available CPUs, by the preferred shape.

A ``CpuAccumulator`` moves CPUs from ``free`` to ``taken`` in stages, from the most to the least compact shape: one NUMA
node, one socket, many sockets, scattered CPUs. A stage takes all needed CPUs, a part, or none. The last stage takes any
CPUs, so a request fails only if too few are available. Exclusive policies are preferences: a stage first tries domains
that honor them, then all.

This module has only preferences. ``bind_policies.py`` handles required policies, downgrades and even distribution.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import (
    UNOCCUPIED,
    CpuOccupancy,
    CpuRequest,
    Layout,
    NotEnoughCpus,
    TopologyDomain,
    layout_of,
)
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import FULL_PCPUS, NUMA_NODE_LEVEL, PCPU_LEVEL, CpuBindPolicy
from koord_numa.core.ordering import by_use, neighbourhood_key, numa_key, ranks, socket_key, tightness

# The state of a pick of CPUs, and shapes of free CPUs: whole cores, one CPU per core, spread.


class CpuAccumulator:
    """The state of a pick. All sets are CPU bits."""

    __slots__ = (
        "free",
        "layout",
        "machine",
        "need",
        "references",
        "repelled_cores",
        "repelled_numas",
        "request",
        "sign",
        "taken",
        "threads",
    )

    def __init__(
        self, request: CpuRequest, count: int, machine: CpuTopology, free: int, occupancy: CpuOccupancy
    ) -> None:
        self.request = request
        self.machine = machine
        self.layout: Layout = layout_of(machine)
        self.threads = machine.threads_per_core
        # +1 or -1: the factor on free counts reverses the order "fullest first" without a second set of keys.
        self.sign = tightness(request.strategy)
        self.free = free
        self.taken = 0
        self.need = count
        # With a limit of 1 no free CPU is held by any pod, so all use counts are equal.
        self.references: Mapping[int, int] = occupancy.references if occupancy.limit > 1 else {}
        self.repelled_cores = 0
        self.repelled_numas = 0
        # Only pods with the same exclusive policy repel each other.
        if request.exclusive is PCPU_LEVEL:
            self._repel(occupancy.pcpu_level.bits & machine.bits)
        elif request.exclusive is NUMA_NODE_LEVEL:
            self._repel(occupancy.numa_level.bits & machine.bits)

    def take(self, bits: int) -> None:
        """Move CPUs from free to taken. They also repel later picks of the same pod."""
        self.free &= ~bits
        self.taken |= bits
        self.need -= bits.bit_count()
        # No later pick exists after the last CPU.
        if self.need > 0:
            self._repel(bits)

    def take_first(self, cpus: Sequence[int]) -> None:
        """Take as many of these CPUs as needed, in the given order."""
        self.take(sum(1 << cpu for cpu in cpus[: self.need]))

    def _repel(self, bits: int) -> None:
        if self.request.exclusive is PCPU_LEVEL:
            for core, _, _ in self.layout.cores:
                if core & bits:
                    self.repelled_cores |= core
        elif self.request.exclusive is NUMA_NODE_LEVEL:
            for place in self.layout.numas:
                if place.bits & bits:
                    self.repelled_numas |= place.bits

    def in_order(self, bits: int) -> list[int]:
        """Return CPUs ascending by id. If CPUs are shared, the least used come first."""
        return by_use(CpuSet(bits), self.references) if self.references else list(CpuSet(bits))

    def whole_cores(self, place: TopologyDomain, usable: int) -> list[int]:
        """Return the cores of the domain with all threads usable, as CPU bits, by use and id."""
        if self.layout.uniform:
            whole = [core for core in place.cores if core & usable == core]
        else:
            whole = [mine for core in place.cores if (mine := core & usable).bit_count() == self.threads]
        if self.references:
            # ``sort`` is stable: cores with equal use keep the order of their ids.
            whole.sort(key=self.uses)
        return whole

    def of_whole(self, cores: Sequence[int]) -> int:
        """Return the needed CPUs of these whole cores in the given order. The last core may be split."""
        whole, rest = divmod(self.need, self.threads)
        bits = union(cores[:whole])
        # The rest takes the lowest CPUs of another core.
        return bits | sum(1 << cpu for cpu in islice(CpuSet(cores[whole]), rest)) if rest else bits

    def uses(self, bits: int) -> int:
        """Return the number of pods that hold these CPUs, summed over the CPUs."""
        return sum(self.references.get(cpu, 0) for cpu in CpuSet(bits)) if self.references else 0

    def layers(self, cpus: Iterable[int]) -> list[list[int]]:
        """Distribute CPUs by core: the first CPU of every core, then the second of every core, and so on. Layers keep the given order."""
        core_of = self.layout.core_of
        layers: list[list[int]] = []
        depth: dict[int, int] = {}
        for cpu in cpus:
            core = core_of[cpu]
            level = depth.get(core, 0)
            depth[core] = level + 1
            if level == len(layers):
                layers.append([])
            layers[level].append(cpu)
        return layers

    def spread(self, cpus: Sequence[int]) -> Sequence[int]:
        """Return the CPUs with siblings as far apart as possible. At most one core's number of CPUs keeps its order."""
        # CPUs that one core could hold are not distributed, as in upstream's spreadCPUs.
        return cpus if len(cpus) <= self.threads else list(chain.from_iterable(self.layers(cpus)))


def union(sets: Iterable[int]) -> int:
    """Return the union of the CPU bits."""
    bits = 0
    for each in sets:
        bits |= each
    return bits


def take_cpus(
    request: CpuRequest,
    machine: CpuTopology,
    available: CpuSet,
    occupancy: CpuOccupancy = UNOCCUPIED,
    preferred: CpuSet = EMPTY,
) -> CpuSet | NotEnoughCpus:
    """
    Take exactly ``request.count`` available CPUs, those of ``preferred`` first.

    As Koordinator's ``takePreferredCPUs`` and ``takeCPUs`` (cpu_accumulator.go), except that a request over three or
    more sockets never gets an extra CPU.
    """
    usable = available.bits & machine.bits
    if request.count > usable.bit_count():
        return NotEnoughCpus(request.count, usable.bit_count())
    # Preferred CPUs are picked separately, so that none of them is skipped for a better shape elsewhere.
    first = usable & preferred.bits
    early = min(request.count, first.bit_count())
    taken = _take(request, early, machine, first, occupancy) if early > 0 else 0
    if request.count > early:
        taken |= _take(request, request.count - early, machine, usable & ~first, occupancy)
    return CpuSet(taken)


def _take(request: CpuRequest, count: int, machine: CpuTopology, free: int, occupancy: CpuOccupancy) -> int:
    picking = CpuAccumulator(request, count, machine, free, occupancy)
    for stage in _stages(request.bind, picking.threads):
        stage(picking)
        if picking.need < 1:
            break
    return picking.taken


def _whole_cores_on_one_numa(picking: CpuAccumulator) -> None:
    """Take whole cores of one NUMA node. An odd rest splits the last core."""
    # Bounded by the averages of the machine: upstream compares with CPUsPerNode and CPUsPerSocket, not with each
    # domain.
    if picking.need > picking.machine.cpus_per_numa:
        return
    # First without repelled NUMA nodes, then with them: the exclusive policy is a preference.
    for repelled in _honouring_then_not(picking.repelled_numas):
        usable = picking.free & ~repelled
        offers = [
            (place, cores)
            for place in picking.layout.numas
            if place.bits & usable
            and (cores := picking.whole_cores(place, usable))
            and len(cores) * picking.threads >= picking.need
        ]
        if offers:
            _, cores = min(
                offers,
                key=lambda offer: numa_key(
                    picking.sign,
                    len(offer[1]),
                    (usable & offer[0].socket_bits).bit_count(),
                    offer[0].id,
                ),
            )
            picking.take(picking.of_whole(cores))
            return


def _whole_cores_on_one_socket(picking: CpuAccumulator) -> None:
    """Take whole cores of one socket."""
    if picking.need > picking.machine.cpus_per_socket:
        return
    for cores in _socket_offers(picking):
        if len(cores) * picking.threads >= picking.need:
            picking.take(picking.of_whole(cores))
            return


def _whole_cores_of_many_sockets(picking: CpuAccumulator) -> None:
    """Take all whole cores of the sockets with the most, then core by core from the sockets with the least."""
    aside: list[list[int]] = []
    for cores in sorted(_socket_offers(picking), key=len, reverse=True):
        # Taking more than needed would round the pod up to a whole socket.
        if picking.need < len(cores) * picking.threads:
            aside.append(cores)
            continue
        picking.take(union(cores))
        if picking.need < 1:
            return
    # Smallest first, to keep the larger sockets whole for later pods.
    aside.sort(key=len)
    for core in chain.from_iterable(aside):
        # Koordinator continues with the next socket here and may take a whole core for a smaller rest.
        if picking.need < picking.threads:
            return
        picking.take(core)


def _spread_on_one_numa(picking: CpuAccumulator) -> None:
    """Take CPUs of one NUMA node: on different cores that no pod repels, else any."""
    if picking.need > picking.machine.cpus_per_numa:
        return
    repelled = picking.repelled_numas | picking.repelled_cores
    # First different cores that no pod repels. The second pass drops both conditions at once, as upstream.
    for usable, one_per_core in ((picking.free & ~repelled, True), (picking.free, False)):
        places = sorted(
            (place for place in picking.layout.numas if (place.bits & usable).bit_count() >= picking.need),
            key=lambda place: numa_key(
                picking.sign,
                (place.bits & usable).bit_count(),
                (place.socket_bits & usable).bit_count(),
                place.id,
            ),
        )
        for place in places:
            cpus = picking.in_order(place.bits & usable)
            offer = picking.layers(cpus)[0] if one_per_core else picking.spread(cpus)
            if len(offer) >= picking.need:
                picking.take_first(offer)
                return


def _spread_on_one_socket(picking: CpuAccumulator) -> None:
    # Upstream's socket stage only filters by repelled cores.
    """Take CPUs of one socket in the same way. Repelled NUMA nodes do not matter here."""
    if picking.need > picking.machine.cpus_per_socket:
        return
    for usable, one_per_core in ((picking.free & ~picking.repelled_cores, True), (picking.free, False)):
        offers: list[tuple[int, Sequence[int]]] = []
        for place in picking.layout.sockets:
            if (place.bits & usable).bit_count() >= picking.need:
                cpus = picking.in_order(place.bits & usable)
                offers.append((place.id, picking.layers(cpus)[0] if one_per_core else picking.spread(cpus)))
        offers = [(socket, cpus) for socket, cpus in offers if len(cpus) >= picking.need]
        if offers:
            picking.take_first(min(offers, key=lambda offer: socket_key(picking.sign, len(offer[1]), offer[0]))[1])
            return


def _scattered(picking: CpuAccumulator) -> None:
    """Take any CPUs: near the taken ones, cores with the fewest free CPUs first, on different cores as long as possible."""
    for repelled in _honouring_then_not(picking.repelled_numas | picking.repelled_cores):
        picking.take_first(picking.spread(_by_neighbourhood(picking, picking.free & ~repelled)))
        if picking.need < 1:
            return


_Stage = Callable[[CpuAccumulator], None]
_WHOLE: Final[tuple[_Stage, ...]] = (
    _whole_cores_on_one_numa,
    _whole_cores_on_one_socket,
    _whole_cores_of_many_sockets,
)
_SPREAD: Final[tuple[_Stage, ...]] = (_spread_on_one_numa, _spread_on_one_socket)


def _stages(bind: CpuBindPolicy, threads: int) -> tuple[_Stage, ...]:
    if bind is FULL_PCPUS:
        return (*_WHOLE, _scattered)
    # Without SMT full cores and single CPUs are the same, so compact domains also come first for spreading pods.
    return (*_WHOLE, *_SPREAD, _scattered) if threads == 1 else (*_SPREAD, _scattered)


def _honouring_then_not(repelled: int) -> tuple[int, ...]:
    return (repelled, 0) if repelled else (0,)


def _socket_offers(picking: CpuAccumulator) -> list[list[int]]:
    offers = [(place.id, picking.whole_cores(place, picking.free)) for place in picking.layout.sockets]
    offers.sort(key=lambda offer: socket_key(picking.sign, len(offer[1]), offer[0]))
    return [cores for _, cores in offers]


def _by_neighbourhood(picking: CpuAccumulator, usable: int) -> list[int]:
    rank = ranks(
        {
            place.id: neighbourhood_key(
                picking.sign,
                (place.socket_bits & picking.taken).bit_count(),
                (place.socket_bits & usable).bit_count(),
                (place.bits & usable).bit_count(),
            )
            for place in picking.layout.numas
        }
    )
    cores = [
        # Upstream's order: NUMA rank, cores with fewer free CPUs, socket, use, and position as the last tie-break.
        (rank[numa], mine.bit_count(), socket, picking.uses(mine), position, mine)
        for position, (core, numa, socket) in enumerate(picking.layout.cores)
        if (mine := core & usable)
    ]
    return [cpu for *_, mine in sorted(cores) for cpu in picking.in_order(mine)]
