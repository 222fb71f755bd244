"""Use that published amounts do not show yet, or overlook."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.core.explain import needs_text
from koord_numa.core.kubelet.demand import ContainerDemand, PodDemand, is_memory, pod_demand
from koord_numa.core.kubelet.node_config import NodeConfig
from koord_numa.core.kubelet.options import CLOSEST_NUMA
from koord_numa.core.objects.node import NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.vocabulary import INIT, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MILLI, NOTHING, ResourceList, add, total
from koord_numa.core.state.ledger import Holding, Ledger

DEMANDS: Final = "demands"
"""What they are called among the sums of a ledger."""


@dataclass(slots=True, eq=False)
class KnownDemands:
    """
    ``pods`` are the demands of pods whose request is known, by uid, in the order in which they were counted; ``left`` are those of them
    with leftovers, or with init containers that may leave some.
    """

    pods: dict[str, PodDemand] = field(default_factory=dict)
    left: dict[str, PodDemand] = field(default_factory=dict)

    def count(self, holding: Holding, sign: int) -> None:
        """A pod came (1) or went (-1)."""
        uid = holding.pod.uid
        if sign < 0:
            self.pods.pop(uid, None)
            self.left.pop(uid, None)
        elif holding.request is not None:
            demand = self.pods[uid] = pod_demand(holding.request)
            if demand.leftovers or any(container.kind is INIT and part.cpus for container, part in demand.containers):
                self.left[uid] = demand

    def shown_leftovers(self, hidden: Collection[str]) -> Sequence[PodDemand]:
        """The pods but for hidden ones, by uid, if any of them has leftovers; else none."""
        if not self.left or all(uid in hidden for uid in self.left):
            return ()
        return [demand for uid, demand in self.pods.items() if uid not in hidden]


def holdings_by_uid(holdings: Ledger | list[Holding]) -> Mapping[str, Holding]:
    """Every pod's holding by its uid."""
    return holdings.holdings if isinstance(holdings, Ledger) else {held.pod.uid: held for held in holdings}


def known_demands(holdings: Ledger | list[Holding]) -> KnownDemands:
    """Of a ledger those that it keeps from now on; not to be changed, and valid until the ledger changes."""
    ledger = holdings if isinstance(holdings, Ledger) else None
    known = None if ledger is None else ledger.sums.get(DEMANDS)
    if isinstance(known, KnownDemands):
        return known
    made = KnownDemands()
    for holding in holdings:
        made.count(holding, 1)
    if ledger is not None:
        ledger.sums[DEMANDS] = made
    return made


Parts = tuple[tuple[int, ResourceList], ...]
"""What a pod may hold, by NUMA node."""

NAMED: Final = 3
"""Pods that a text about overlooked use names."""

MOST_HOLDERS: Final = 8
"""Running pods of which sets are compared with the overlooked amount: 255 sets."""

HIDDEN: Final = "hidden"
"""What they are called among the sums of a ledger."""


class HiddenUse:
    """
    What the pods of one node may hold that its topology does not show yet, by NUMA node: sums that cost what changed.

    They hold as long as the topology differs in nothing but in what is available. A ledger keeps them once they have been asked for, and
    tells whose holding is another one (``count``).
    """

    __slots__ = ("_parts", "_sums", "frame")

    def __init__(self, frame: object) -> None:
        self.frame = frame  # what they hold for, by identity
        self._parts: dict[str, Parts] = {}  # of the hidden pods that are there, by uid
        self._sums: dict[int, dict[str, int]] = {}  # by NUMA id

    def count(self, holding: Holding, _sign: int) -> None:
        """A pod came (1) or went (-1): what it may hold is worked out again at the next question."""
        self._forget(holding.pod.uid)

    def of(
        self,
        there: Mapping[str, Holding],
        hidden: Set[str],
        zones: Sequence[Zone],
        topology: NodeResourceTopology,
    ) -> Mapping[int, ResourceList]:
        """
        The most that hidden ones of the pods that are ``there``, by uid, may hold on each NUMA node, all together. Not to be changed, and
        valid until it is asked again.
        """
        known = self._parts.keys()
        if known != hidden:
            for uid in known - hidden:
                self._forget(uid)
            for uid in hidden - known:
                if (holding := there.get(uid)) is not None:
                    self._parts[uid] = parts = tuple(_wherever(holding, zones, topology))
                    self._add(parts, 1)
        return self._sums

    def _forget(self, uid: str) -> None:
        if (parts := self._parts.pop(uid, None)) is not None:
            self._add(parts, -1)

    def _add(self, parts: Parts, sign: int) -> None:
        for numa, amounts in parts:
            sums = self._sums.setdefault(numa, {})
            for name, amount in amounts.items():
                sums[name] = sums.get(name, 0) + sign * amount


def hidden_use(holdings: Ledger | list[Holding], frame: object) -> HiddenUse:
    """Of a ledger those that it keeps from now on for ``frame``, which is told by its identity."""
    ledger = holdings if isinstance(holdings, Ledger) else None
    known = None if ledger is None else ledger.sums.get(HIDDEN)
    if isinstance(known, HiddenUse) and known.frame is frame:
        return known
    made = HiddenUse(frame)
    if ledger is not None:
        ledger.sums[HIDDEN] = made
    return made


def without_hidden(
    zones: Sequence[Zone],
    there: Mapping[str, Holding],
    topology: NodeResourceTopology,
    known: HiddenUse | None = None,
    hidden: Collection[str] | None = None,
) -> tuple[Zone, ...]:
    """
    The zones with less available: what pods that are ``there``, by uid, may hold of them, those of ``hidden`` or all. ``known`` saves work,
    and is brought up to date.
    """
    uids = there.keys() if hidden is None else hidden if isinstance(hidden, Set) else frozenset(hidden)
    if not uids:
        return tuple(zones)
    return _without(zones, (HiddenUse(topology) if known is None else known).of(there, uids, zones, topology))


def shown_where_foreseen(zones: Sequence[Zone], hidden: Sequence[Holding]) -> tuple[Zone, ...]:
    """
    The zones as they would be published if every one of these pods were where it was foreseen, which most are; on each where no pod
    foresees it. No ground to place a pod, but one to guess what an eviction will bring.
    """
    missing: dict[int, dict[str, int]] = {}
    for holding in hidden:
        parts = holding.numa or [(zone.numa, amounts) for zone in zones for amounts in _anywhere(holding)]
        for numa, amounts in parts:
            missing[numa] = add(missing.get(numa, NOTHING), amounts)
    return _without(zones, missing)


@dataclass(frozen=True, slots=True)
class Overlooked:
    """
    Use that an exporter does not publish although pods that run must have it: ``amounts`` by resource, and the ``pods`` that it may be of.

    What runs is a lower bound of use, whatever is published. NFD leaves out Guaranteed pods with a fractional container, for example.
    """

    amounts: ResourceList = field(default_factory=dict)
    pods: tuple[PodKey, ...] = ()
    # By resource, for each set of pods whose use adds up to the amount, what their containers hold. Empty where that is not known.
    sets: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.amounts)

    @property
    def text(self) -> str:
        """``the exporter overlooks 30 CPUs of default/vm-1, default/vm-2``, with at most three pods."""
        names = [str(pod) for pod in self.pods[:NAMED]]
        if len(self.pods) > NAMED:
            names.append(f"{len(self.pods) - NAMED} others")
        return f"the exporter overlooks {needs_text(self.amounts)} of running pods: {', '.join(names)}"


NONE_OVERLOOKED: Final = Overlooked()


def overlooked_use(frame: NodeConfig, running: Iterable[tuple[PodKey, PodDemand]]) -> Overlooked:
    """Compare the published use of all zones with what pods hold that run and that the topology should show."""
    zones, node = frame.topology.zones, frame.node
    pods = list(running)
    counted = [*frame.devices, *([CPU] if node.pins_cpus else ())]
    missing = _missing(frame, counted, total(demand.lasting for _, demand in pods))
    if node.pins_memory:
        memory = total(demand.lasting_memory for _, demand in pods)
        kinds = [name for name in memory if any(name in zone.allocatable for zone in zones)]
        # Zones that list memory without a memory manager show none in use. A dead exporter overlooks CPUs or devices too.
        is_bound = missing or frame.topology.kubelet.memory_policy is not None or any(map(_memory_in_use, zones))
        missing |= _missing(frame, kinds, memory) if is_bound else {}
    if not missing:
        return NONE_OVERLOOKED
    holders = [(pod, demand) for pod, demand in pods if _lasting(demand).keys() & missing.keys()]
    # Pods with fractional containers are the known case: they alone are named where they explain everything.
    partly = [(pod, demand) for pod, demand in holders if len(demand.containers) > len(demand.counts)]
    explains = all(
        sum([_lasting(demand).get(name, 0) for _, demand in partly]) >= amount for name, amount in missing.items()
    )
    named = tuple(sorted((pod for pod, _ in (partly if explains else holders)), key=str))
    # Only under this policy each container is on one NUMA node.
    is_single = frame.topology.kubelet.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE
    demands = [demand for _, demand in holders]
    return Overlooked(
        missing, named, {name: _sets_of(name, missing[name], demands) for name in missing} if is_single else {}
    )


def _missing(frame: NodeConfig, counted: Iterable[str], held: ResourceList) -> dict[str, int]:
    """The amounts of these resources that pods hold and that no zone shows in use."""
    missing: dict[str, int] = {}
    for name in counted:
        if not (wanted := held.get(name, 0)):
            continue
        there = sum([zone.allocatable.get(name, 0) for zone in frame.topology.zones])
        used = there - sum([zone.available.get(name, 0) for zone in frame.topology.zones])
        # Devices near no NUMA node are in no zone.
        elsewhere = 0 if name == CPU or is_memory(name) else max(0, frame.allocatable.get(name, 0) - there)
        if wanted > used + elsewhere:
            missing[name] = wanted - used - elsewhere
    return missing


def _lasting(demand: PodDemand) -> ResourceList:
    return {**demand.lasting, **demand.lasting_memory} if demand.lasting_memory else demand.lasting


def _memory_in_use(zone: Zone) -> bool:
    return any(zone.available.get(name, 0) < amount for name, amount in zone.allocatable.items() if is_memory(name))


def _sets_of(name: str, amount: int, demands: Sequence[PodDemand]) -> Sequence[Sequence[int]]:
    """
    What the containers hold of each set of these pods that holds exactly the amount together, or of all pods where no set does.

    Pods that are not known, whose use is published, hide a part of the amount.
    """
    pods = [
        (
            _lasting(demand)[name],
            [held for container, part in demand.containers if container.kind is not INIT and (held := _of(part, name))],
        )
        for demand in demands
        if _lasting(demand).get(name)
    ]
    if len(pods) > MOST_HOLDERS:
        # Sums of memory are too many to list.
        return () if is_memory(name) else [[held for _, parts in pods for held in parts]]
    exact = [
        [held for _, parts in chosen for held in parts]
        for size in range(1, len(pods) + 1)
        for chosen in combinations(pods, size)
        if sum([total for total, _ in chosen]) == amount
    ]
    return exact or [[held for _, parts in pods for held in parts]]


def _of(part: ContainerDemand, name: str) -> int:
    if name == CPU:
        return part.cpus * MILLI
    return (part.memory or NOTHING).get(name, 0) if is_memory(name) else part.devices.get(name, 0)


def without_overlooked(zones: Sequence[Zone], overlooked: Overlooked, published: Sequence[Zone]) -> tuple[Zone, ...]:
    """
    The zones with less available: what is overlooked may be on any NUMA node, as far as whole containers fit there.

    They fit into what is ``published`` as available: other pods that ``zones`` charge may be elsewhere.
    """
    if not overlooked:
        return tuple(zones)
    missing = {
        zone.numa: {name: _most_on(zone, name, amount, overlooked) for name, amount in overlooked.amounts.items()}
        for zone in published
    }
    return _without(zones, missing)


def _most_on(zone: Zone, name: str, amount: int, overlooked: Overlooked) -> int:
    """The most that overlooked containers may hold on one NUMA node: what is published as available holds them."""
    available, sets = zone.available.get(name, 0), overlooked.sets.get(name)
    if not sets:
        return amount
    most = 0
    for parts in sets:
        sums = {0}
        for part in parts:
            sums |= {total + part for total in sums if total + part <= available}
        most = max(most, *sums)
    return min(amount, most)


def _anywhere(holding: Holding) -> Iterator[ResourceList]:
    if holding.request is not None and any((most := _all_of(pod_demand(holding.request))).values()):
        yield most


def _without(zones: Sequence[Zone], missing: Mapping[int, ResourceList]) -> tuple[Zone, ...]:
    return tuple([_less(zone, missing.get(zone.numa, NOTHING)) for zone in zones])


def _wherever(
    holding: Holding, zones: Sequence[Zone], topology: NodeResourceTopology
) -> Iterator[tuple[int, ResourceList]]:
    """For every NUMA node where the pod could be the most that it may hold there."""
    if not holding.numa:
        return ((zone.numa, amounts) for amounts in _anywhere(holding) for zone in zones)
    # More charged than the pod can hold in all: each of its NUMA nodes was possible, and still is.
    if len(holding.numa) > 1 and _is_counted_on_several(holding):
        return _on_several(holding, zones, topology)
    return _here_and_below(holding, zones, topology)


def _here_and_below(
    holding: Holding, zones: Sequence[Zone], topology: NodeResourceTopology
) -> Iterator[tuple[int, ResourceList]]:
    for numa, amounts in holding.numa:
        yield numa, amounts
        # Never above: see the theory. A lower NUMA node that is too small even when empty is left out.
        for zone in zones:
            if zone.numa < numa and not (_never_had(zone, amounts) and _is_one_unit(holding, topology)):
                yield zone.numa, amounts


def _on_several(
    holding: Holding, zones: Sequence[Zone], topology: NodeResourceTopology
) -> Iterator[tuple[int, ResourceList]]:
    highest = (
        # With prefer-closest-numa-nodes the order of NUMA nodes is by distance, so that "below" means nothing.
        MAX_NUMA_ID if topology.kubelet.topology_options.get(CLOSEST_NUMA) else max(numa for numa, _ in holding.numa)
    )
    return ((zone.numa, amounts) for amounts in _anywhere(holding) for zone in zones if zone.numa <= highest)


def _is_counted_on_several(holding: Holding) -> bool:
    """Several NUMA nodes were possible already when the pod was placed, so each has all of it."""
    if holding.request is None:
        return False
    most = _all_of(pod_demand(holding.request))
    return any(amount > most.get(name, 0) for name, amount in total(amounts for _, amounts in holding.numa).items())


def _is_one_unit(holding: Holding, topology: NodeResourceTopology) -> bool:
    """Is everything that the pod holds aligned together?"""
    if holding.request is None or topology.kubelet.topology_scope is KubeletScope.POD:
        return holding.request is not None
    parts = (part for _, part in pod_demand(holding.request).containers)
    return sum(1 for part in parts if part.cpus or part.memory or part.devices) <= 1


def _never_had(zone: Zone, amounts: ResourceList) -> bool:
    return bool([name for name, amount in amounts.items() if zone.allocatable.get(name, 0) < amount])


def _all_of(demand: PodDemand) -> dict[str, int]:
    """The most that a pod may hold: CPUs of all its containers, memory and devices of those that run at once."""
    # The sum over all containers: init CPUs stay with the pod until it is gone.
    cpus = sum(part.cpus for _, part in demand.containers) * MILLI
    return {CPU: cpus, **(demand.pod.memory or {}), **demand.pod.devices}


def _less(zone: Zone, missing: ResourceList) -> Zone:
    if not missing:
        return zone
    # What a zone does not list is not tracked there and cannot be missing. The rest may go below zero: several places are charged for one
    # pod, and a sum that is too low only refuses.
    left = {name: amount - missing.get(name, 0) for name, amount in zone.available.items()}
    return Zone(zone.numa, zone.capacity, zone.allocatable, left)
