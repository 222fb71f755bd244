"""
Koordinator's choice of CPUs for a pod among the available CPUs, by the preferred shape.

A ``CpuAccumulator`` moves CPUs from ``free`` to ``taken`` in stages, from the most to the least compact shape: one NUMA
node, one socket, many sockets, scattered CPUs. A stage takes all needed CPUs, a part, or none. The last stage takes any
CPUs, so a request fails only if too few are available. Exclusive policies are preferences: a stage first tries domains
that honor them, then all.

This module has only preferences. ``bind_policies.py`` handles required policies, downgrades and even distribution.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.accumulator import CpuAccumulator, union
from koord_numa.core.cpus.cpu_request import UNOCCUPIED, CpuOccupancy, CpuRequest, NotEnoughCpus
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import FULL_PCPUS, CpuBindPolicy
from koord_numa.core.ordering import neighbourhood_key, numa_key, ranks, socket_key


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
