"""
Use that a published topology does not show yet (hidden pods), or that its exporter overlooks.

The kubelet puts a pod on the lowest NUMA nodes with enough room. A pod was placed where it fits beside all pods that may be there, and
fewer of these can only make a lower NUMA node possible. So a hidden pod is charged to its predicted NUMA node and to lower NUMA nodes.
Overlooked use of running pods is charged to every NUMA node where whole containers fit.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
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
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field

DEMANDS: Final = "demands"
"""Key of ``KnownDemands`` in the sums of a ledger."""


class KnownDemands(MutableObject, eq=False):
    """
    The requests of the pods of one node. ``pods`` are the pods with a known request, by uid, in the order of their arrival.

    ``left`` are the pods of these with leftovers, or with init containers that may leave CPUs.
    """

    pods: dict[str, PodDemand] = value_field(default_factory=dict)
    left: dict[str, PodDemand] = value_field(default_factory=dict)

    def count(self, holding: Holding, sign: int) -> None:
        """Add (1) or remove (-1) a pod."""
        uid = holding.pod.uid
        if sign < 0:
            self.pods.pop(uid, None)
            self.left.pop(uid, None)
        elif holding.request is not None:
            demand = self.pods[uid] = pod_demand(holding.request)
            if demand.leftovers or any(container.kind is INIT and part.cpus for container, part in demand.containers):
                self.left[uid] = demand

    def shown_leftovers(self, hidden: Collection[str]) -> Sequence[PodDemand]:
        """Return the requests of all pods that are not hidden, if any of them has leftovers, else an empty sequence."""
        if not self.left or all(uid in hidden for uid in self.left):
            return ()
        return [demand for uid, demand in self.pods.items() if uid not in hidden]


def holdings_by_uid(holdings: Ledger | list[Holding]) -> Mapping[str, Holding]:
    return holdings.holdings if isinstance(holdings, Ledger) else {held.pod.uid: held for held in holdings}


def known_demands(holdings: Ledger | list[Holding]) -> KnownDemands:
    """
    Return the requests of the pods. A ledger keeps them up to date from now on.

    The result must not be changed, and is valid until the ledger changes.
    """
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
"""Amounts that a pod may hold, by NUMA node."""

NAMED: Final = 3
"""Maximum pods that a text about overlooked use names."""

MOST_HOLDERS: Final = 8
"""Maximum running pods whose subsets are compared with the overlooked amount: 255 sets."""

HIDDEN: Final = "hidden"
"""Key of ``HiddenUse`` in the sums of a ledger."""


class HiddenUse:
    """
    The amounts that hidden pods of one node may hold, by NUMA node, updated in time proportional to the change.

    The sums are valid while the topology changes in available amounts only. A ledger keeps them after the first use and calls ``count`` for
    every changed holding.
    """

    __slots__ = ("_parts", "_sums", "frame")

    def __init__(self, frame: object) -> None:
        self.frame = frame  # the sums are valid for this object, compared by identity
        self._parts: dict[str, Parts] = {}  # of the present hidden pods, by uid
        self._sums: dict[int, dict[str, int]] = {}  # by NUMA id

    def count(self, holding: Holding, _sign: int) -> None:
        """Remove a changed pod from the sums. They are computed again when they are used."""
        self._forget(holding.pod.uid)

    def of(
        self,
        there: Mapping[str, Holding],
        hidden: Set[str],
        zones: Sequence[Zone],
        topology: NodeResourceTopology,
    ) -> Mapping[int, ResourceList]:
        """
        Return the maximum that the ``hidden`` pods among the pods in ``there`` may hold together, by NUMA node.

        The result must not be changed, and is valid until the next call.
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
    """Return the sums of hidden pods for ``frame``, which is compared by identity. A ledger keeps them up to date from now on."""
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
    Return the zones without the amounts that the ``hidden`` pods in ``there``, or all of these pods, may hold.

    ``known`` saves time and is updated.
    """
    uids = there.keys() if hidden is None else hidden if isinstance(hidden, Set) else frozenset(hidden)
    if not uids:
        return tuple(zones)
    return _without(zones, (HiddenUse(topology) if known is None else known).of(there, uids, zones, topology))


def shown_where_foreseen(zones: Sequence[Zone], hidden: Sequence[Holding]) -> tuple[Zone, ...]:
    """
    Return the zones as they would be published if every one of these pods were on its predicted NUMA nodes.

    A pod without a prediction is subtracted from every zone. The result is an estimate of the effect of an
    eviction, and not safe for placement.
    """
    missing: dict[int, dict[str, int]] = {}
    for holding in hidden:
        parts = holding.numa or [(zone.numa, amounts) for zone in zones for amounts in _anywhere(holding)]
        for numa, amounts in parts:
            missing[numa] = add(missing.get(numa, NOTHING), amounts)
    return _without(zones, missing)


class Overlooked(ValueObject):
    """
    Use that an exporter does not publish although running pods have it: ``amounts`` by resource, and the ``pods`` that it may belong to.

    Running pods are a lower bound of use. For example, NFD leaves out Guaranteed pods with a fractional container.
    """

    amounts: ResourceList = value_field(default_factory=dict)
    pods: tuple[PodKey, ...] = ()
    # By resource: for every set of pods whose use sums to the amount, the amounts of their containers. Empty where not
    # known.
    sets: Mapping[str, Sequence[Sequence[int]]] = value_field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.amounts)

    @property
    def text(self) -> str:
        """A sentence such as ``the exporter overlooks 30 CPUs of default/vm-1, default/vm-2``, with at most three pods."""
        names = [str(pod) for pod in self.pods[:NAMED]]
        if len(self.pods) > NAMED:
            names.append(f"{len(self.pods) - NAMED} others")
        return f"the exporter overlooks {needs_text(self.amounts)} of running pods: {', '.join(names)}"


NONE_OVERLOOKED: Final = Overlooked()


def overlooked_use(frame: NodeConfig, running: Iterable[tuple[PodKey, PodDemand]]) -> Overlooked:
    """Compare the published use of all zones with the use of running pods that the topology should show. Return the difference."""
    zones, node = frame.topology.zones, frame.node
    pods = list(running)
    counted = [*frame.devices, *([CPU] if node.pins_cpus else ())]
    missing = _missing(frame, counted, total(demand.lasting for _, demand in pods))
    if node.pins_memory:
        memory = total(demand.lasting_memory for _, demand in pods)
        kinds = [name for name in memory if any(name in zone.allocatable for zone in zones)]
        # Zones that list memory without a memory manager show none in use. A failed exporter overlooks CPUs or devices
        # too.
        is_bound = missing or frame.topology.kubelet.memory_policy is not None or any(map(_memory_in_use, zones))
        missing |= _missing(frame, kinds, memory) if is_bound else {}
    if not missing:
        return NONE_OVERLOOKED
    holders = [(pod, demand) for pod, demand in pods if _lasting(demand).keys() & missing.keys()]
    # Pods with fractional containers are the known case. Only these are named if they explain all missing amounts.
    partly = [(pod, demand) for pod, demand in holders if len(demand.containers) > len(demand.counts)]
    explains = all(
        sum([_lasting(demand).get(name, 0) for _, demand in partly]) >= amount for name, amount in missing.items()
    )
    named = tuple(sorted((pod for pod, _ in (partly if explains else holders)), key=str))
    # Only under this policy every container is on one NUMA node.
    is_single = frame.topology.kubelet.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE
    demands = [demand for _, demand in holders]
    return Overlooked(
        missing, named, {name: _sets_of(name, missing[name], demands) for name in missing} if is_single else {}
    )


def _missing(frame: NodeConfig, counted: Iterable[str], held: ResourceList) -> dict[str, int]:
    """Return the amounts of these resources that pods hold and that no zone shows in use."""
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
    Return the container amounts of every set of these pods that holds exactly the amount, or of all pods if there is no such set.

    Unknown pods, whose use is published, may hide a part of the amount.
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
        # There are too many sums of memory to list.
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
    Return the zones without the overlooked use, which may be on any NUMA node where whole containers fit.

    The containers fit in the available amounts of ``published``. Other pods that ``zones`` charges may be elsewhere.
    """
    if not overlooked:
        return tuple(zones)
    missing = {
        zone.numa: {name: _most_on(zone, name, amount, overlooked) for name, amount in overlooked.amounts.items()}
        for zone in published
    }
    return _without(zones, missing)


def _most_on(zone: Zone, name: str, amount: int, overlooked: Overlooked) -> int:
    """Return the maximum that overlooked containers may hold on one NUMA node, within its published available amount."""
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
    """Return the maximum amounts of the pod for every NUMA node that it may be on."""
    if not holding.numa:
        return ((zone.numa, amounts) for amounts in _anywhere(holding) for zone in zones)
    # Charged more than the pod can hold: every one of its NUMA nodes was and is possible.
    if len(holding.numa) > 1 and _is_counted_on_several(holding):
        return _on_several(holding, zones, topology)
    return _here_and_below(holding, zones, topology)


def _here_and_below(
    holding: Holding, zones: Sequence[Zone], topology: NodeResourceTopology
) -> Iterator[tuple[int, ResourceList]]:
    for numa, amounts in holding.numa:
        yield numa, amounts
        # Never a higher NUMA node (module docstring). Lower NUMA nodes that are too small even when empty are left out.
        for zone in zones:
            if zone.numa < numa and not (_never_had(zone, amounts) and _is_one_unit(holding, topology)):
                yield zone.numa, amounts


def _on_several(
    holding: Holding, zones: Sequence[Zone], topology: NodeResourceTopology
) -> Iterator[tuple[int, ResourceList]]:
    highest = (
        # With prefer-closest-numa-nodes, NUMA nodes are ordered by distance and not by id.
        MAX_NUMA_ID if topology.kubelet.topology_options.get(CLOSEST_NUMA) else max(numa for numa, _ in holding.numa)
    )
    return ((zone.numa, amounts) for amounts in _anywhere(holding) for zone in zones if zone.numa <= highest)


def _is_counted_on_several(holding: Holding) -> bool:
    """Return whether the pod is charged with its full amounts to several NUMA nodes, all of which were possible when it was placed."""
    if holding.request is None:
        return False
    most = _all_of(pod_demand(holding.request))
    return any(amount > most.get(name, 0) for name, amount in total(amounts for _, amounts in holding.numa).items())


def _is_one_unit(holding: Holding, topology: NodeResourceTopology) -> bool:
    """Return whether all resources of the pod are aligned together."""
    if holding.request is None or topology.kubelet.topology_scope is KubeletScope.POD:
        return holding.request is not None
    parts = (part for _, part in pod_demand(holding.request).containers)
    return sum(1 for part in parts if part.cpus or part.memory or part.devices) <= 1


def _never_had(zone: Zone, amounts: ResourceList) -> bool:
    return bool([name for name, amount in amounts.items() if zone.allocatable.get(name, 0) < amount])


def _all_of(demand: PodDemand) -> dict[str, int]:
    """Return the maximum that a pod may hold: CPUs of all containers, memory and devices of the containers that run at the same time."""
    # The sum over all containers, because CPUs of init containers stay with the pod until it ends.
    cpus = sum(part.cpus for _, part in demand.containers) * MILLI
    return {CPU: cpus, **(demand.pod.memory or {}), **demand.pod.devices}


def _less(zone: Zone, missing: ResourceList) -> Zone:
    if not missing:
        return zone
    # Resources that a zone does not list are not tracked. The rest may be negative, because one pod is charged to
    # several places. A sum that is too low only causes rejections.
    left = {name: amount - missing.get(name, 0) for name, amount in zone.available.items()}
    return Zone(zone.numa, zone.capacity, zone.allocatable, left)
