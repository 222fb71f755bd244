"""Pods that a topology of a kubelet-owned node shows, derived from its fingerprint and the observed pods."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from math import inf
from typing import Final

from koord_numa.core.fingerprint import comparable, fingerprint_of, pod_hash
from koord_numa.core.kubelet.bounds import everything
from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.kubelet.node_config import NodeConfig
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod, PodRequest
from koord_numa.core.objects.vocabulary import INIT
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.value_objects import MutableObject, ValueObject


class KnownPod(MutableObject):
    """
    A pod of this node. Times are seconds of the cache's clock, except ``began`` and ``created``: seconds since the epoch, 0 if unknown.

    ``bound``: time when it was first counted. ``started``: the node has reported it as running, first at ``judged``. ``ending``: time when
    its deletion timestamp was observed. ``left``: it is gone since ``left_at``, and the node's topology may not show that yet.
    ``listed``: it was first observed in a list, so its bind may have been long before ``bound``.
    ``found``: it ran when it was first observed. ``began``: start time by the kubelet. ``unordered``: it arrived while there was no watch.
    ``coined``: no earlier pod had its name. ``cpus``: exclusive CPUs of all its containers. ``had_cpus``: when it was bound, the node had
    enough CPUs for the maximum of this pod and all other pods together.
    """

    uid: str
    namespace: str
    name: str
    request: PodRequest
    bound: float
    started: bool = False
    left: bool = False
    left_at: float = 0.0
    judged: float = 0.0
    found: bool = False
    began: float = 0.0
    created: float = 0.0
    unordered: bool = False
    listed: bool = False
    coined: bool = False
    ending: float | None = None
    cpus: int = 0
    had_cpus: bool = False

    @classmethod
    def of(cls, pod: Pod, now: float, *, listed: bool = False) -> "KnownPod":
        """Return the record of a pod that is observed for the first time."""
        key, began = pod.key, pod.started_at
        known = cls(key.uid, key.namespace, key.name, pod.request, now, found=pod.started, began=began)
        known.created, known.coined, known.cpus = pod.created, pod.coined, everything(pod.request).cpus
        known.listed = listed
        return known

    def may_reuse_name(self, since: float) -> bool:
        """Return whether an earlier pod may have had its name at ``since`` (epoch seconds) or later."""
        return not self.coined and self.created >= since

    @property
    def order(self) -> tuple[int, float, float]:
        """Sort key: found pods by start time, then found pods that have not started by creation time, then all others."""
        if not self.found:
            return 2, 0.0, 0.0
        return (0, self.began, self.created) if self.started else (1, self.created, 0.0)


def order_is_known(arrived: Sequence[KnownPod]) -> bool:
    """
    Return whether these pods reached the kubelet in this order with no other pod between them.

    Other pods may have run before found pods and have left since. Pods that arrived while there was no watch may be at any position.
    """
    if any(known.unordered for known in arrived) and len(arrived) > 1:
        return False
    return not any(known.found for known in arrived)


# Pods that a topology may show instead of other pods of the same name: fingerprints use names, and controllers reuse names.
#
# A topology shows the pods that ran at one moment. A pod may run from its bind until it is observed as gone. A pod with a unique name
# limits the possible moments: pods that left before its bind are not shown. Pods with reused names do not limit the moments, because
# for each of them the topology may show the departed pod instead.
#
# Example: pods a and b left at 10, and pods of the same names were bound at 20 and 30. A late topology of {a, b} may show the first two. If
# pod c with a unique name was bound at 25, a topology of {a, b, c} shows the second two, because the first two had left by then.

MOST_WAYS: Final = 64
"""Maximum sets of pods with the same names that are distinguished."""


def ways_to_show(shown: Iterable[KnownPod], pods: Iterable[KnownPod], oldest: float = -inf) -> list[frozenset[str]]:
    """
    Return all sets of UIDs with the names of ``shown`` that a topology created at ``oldest`` or later may show.

    The first set is ``shown`` itself. The others contain departed pods of the same names. Return no set if there are more than
    ``MOST_WAYS``. ``pods`` are all known pods, including departed pods.
    """
    departed: dict[tuple[str, str], list[KnownPod]] = {}
    for known in pods:
        if known.left:
            departed.setdefault((known.namespace, known.name), []).append(known)
    first = [*shown]
    ways = dict.fromkeys([frozenset(known.uid for known in first)])
    if not departed:  # the usual case
        return [*ways]
    begin, end = oldest, inf  # interval in which the topology was created, by the pods that it certainly shows
    sure: set[str] = set()
    unsure: list[list[KnownPod]] = []
    for known in first:
        same = [known, *(other for other in departed.get((known.namespace, known.name), ()) if other is not known)]
        if len(same) > 1:
            unsure.append(same)
        else:
            sure.add(known.uid)
            begin, end = max(begin, _begin(known)), min(end, _end(known))
    # Pods that run together at some moment also run together when the last of them is bound.
    for moment in sorted({begin, *(_begin(known) for same in unsure for known in same)}):
        if not begin <= moment <= end:
            continue
        there = [[known.uid for known in same if _begin(known) <= moment <= _end(known)] for same in unsure]
        ways.update((way.union(sure), None) for way in islice(map(frozenset, product(*there)), MOST_WAYS + 1))
        if len(ways) > MOST_WAYS:
            return []
    return [*ways]


def _begin(known: KnownPod) -> float:
    """Return the earliest time at which the pod may run; unbounded if its bind was not observed."""
    return -inf if known.found or known.listed else known.bound


def _end(known: KnownPod) -> float:
    return known.left_at if known.left else inf


ALL: Final = ("", "all")
EXCLUSIVE: Final = "with-exclusive-resources"

MOST_SETS: Final = 500
"""Maximum sets of pods that are compared with a fingerprint."""


class Reading(ValueObject):
    """
    Pods that a topology shows, as UIDs.

    ``counted`` are the pods that its fingerprint covers; without a fingerprint, pods that hold resources of NUMA nodes when they run.
    ``shown`` are the pods that it shows, ``None`` if unknown. ``tells``: it has a usable fingerprint. ``ways`` are all sets with the same
    names that it may show, ``shown`` first. ``namesakes`` are the pods of ``shown`` that are not in all of these sets.
    """

    counted: Collection[str]
    shown: frozenset[str] | None
    tells: bool
    namesakes: frozenset[str] = frozenset()
    ways: Sequence[frozenset[str]] = ()


def read(
    topology: NodeResourceTopology,
    frame: NodeConfig,
    pods: Mapping[str, KnownPod],
    last: Collection[str],
    oldest: float = -inf,
) -> Reading:
    """
    Return which of these pods, by UID, a topology shows that was created at ``oldest`` or later.

    ``last`` are the pods that the last explained topology showed.
    """
    told = tells(topology)
    # Method ``all`` also covers pods that hold no resources of NUMA nodes.
    if told and topology.fingerprint_method in ALL:
        counted: Collection[str] = pods.keys()
    else:
        counted = frozenset(known.uid for known in pods.values() if is_exclusive(pod_demand(known.request), frame))
    if not told:
        return Reading(counted, None, tells=False)
    hashes = {known.uid: pod_hash(known.namespace, known.name) for known in pods.values()}
    for uids in islice(sets(pods.values(), counted, last), MOST_SETS):
        if fingerprint_of(map(hashes.__getitem__, uids)) == topology.fingerprint:
            ways = ways_to_show([pods[uid] for uid in uids], pods.values(), oldest)
            if not ways:
                break
            return Reading(counted, ways[0], tells=True, namesakes=ways[0] - ways[0].intersection(*ways[1:]), ways=ways)
    return Reading(counted, None, tells=True)


class LastReading(MutableObject):
    """
    Cached reading of the last topology.

    Exporters publish periodically, usually with an unchanged fingerprint. While fingerprint and pods are unchanged, so is the reading.
    """

    _topology: NodeResourceTopology | None = None
    _follows_from: tuple[object, ...] = ()  # the other inputs; empty if outdated
    _reading: Reading | None = None

    def of(
        self, frame: NodeConfig, pods: Mapping[str, KnownPod], last: frozenset[str], oldest: float = -inf
    ) -> Reading:
        """Return the result of ``read`` for the topology in ``frame``."""
        topology, known = frame.topology, self._reading
        # Processing a reading changes ``pods`` and ``last``, but not which pods this topology shows.
        if known is not None and self._topology is topology:
            return known
        follows_from = topology.fingerprint, topology.fingerprint_method, frame.node, frame.devices, last, tuple(pods)
        if known is None or known.namesakes or self._follows_from != follows_from:
            known = read(topology, frame, pods, last, oldest)
        self._topology, self._follows_from, self._reading = topology, follows_from, known
        return known

    def pod_started(self) -> None:
        """Invalidate the cache for the next topology, because the start of a pod changes the order."""
        self._follows_from = ()

    def forget(self) -> None:
        """Invalidate the cache, also for the last topology, because a pod arrived or left."""
        self._topology, self._follows_from, self._reading = None, (), None


def sets(pods: Iterable[KnownPod], counted: Collection[str], last: Collection[str]) -> Iterator[list[str]]:
    """
    Yield the sets of UIDs that may have run at one moment since the last explained topology: a prefix of the binds without departed pods.

    Kubelets admit pods in the order of their binds, so a later pod runs only if all earlier pods were admitted before.
    """
    order = sorted((known for known in pods if known.uid in counted), key=lambda known: known.order)
    old = [known for known in order if known.uid in last]
    new = [known for known in order if known.uid not in last]
    return possible_sets(old, new)


def tells(topology: NodeResourceTopology) -> bool:
    """Return whether the topology has a fingerprint of a known method and version."""
    return comparable(topology.fingerprint) and topology.fingerprint_method in (*ALL, EXCLUSIVE)


def is_exclusive(demand: PodDemand, frame: NodeConfig) -> bool:
    """
    Return whether resource-topology-exporter counts the pod as a pod with exclusive resources.

    That is the case if the podresources API lists exclusive CPUs, memory of a NUMA node, or devices with NUMA affinity for a container.
    """
    node = frame.node
    for container, part in demand.containers:
        if container.kind is INIT:
            continue
        if (part.cpus and node.pins_cpus) or (part.memory and node.pins_memory):
            return True
        if any(count and name in frame.devices for name, count in part.devices.items()):
            return True
    return False


def is_tied(demand: PodDemand, frame: NodeConfig) -> bool:
    """Return whether the kubelet's managers allocate resources to any container of the pod."""
    node = frame.node
    return any(
        (part.cpus and node.pins_cpus)
        or (part.memory and node.pins_memory)
        or any(name in frame.devices for name in part.devices)
        for _, part in demand.containers
    )


def tied_sets(
    sets_of_pods: Iterable[Collection[str]], pods: Mapping[str, KnownPod], frame: NodeConfig
) -> list[Sequence[str]]:
    """Return the distinct sets after omitting pods to which the kubelet's managers allocate nothing, or that were never admitted."""
    found: dict[frozenset[str], Sequence[str]] = {}
    for one in sets_of_pods:
        tied = [uid for uid in one if uid in pods and is_tied(pod_demand(pods[uid].request), frame)]
        found.setdefault(frozenset(tied), tied)
    return [*found.values()]


def has_cpus_for(known: KnownPod, pods: Iterable[KnownPod], frame: NodeConfig) -> bool:
    """
    Return whether the allocatable CPUs suffice for ``pods``, so that the rejection of ``known`` proves that cores have several threads.

    False for a pod without odd numbers of CPUs, because its rejection proves nothing about cores.
    """
    if not [count for count in pod_demand(known.request).counts if count % 2]:
        return False
    there = sum(zone.allocatable.get(CPU, 0) for zone in frame.topology.zones) // MILLI
    return sum([each.cpus for each in pods]) <= there


@dataclass(frozen=True, slots=True)
class _Prefix:
    """
    A prefix of the pods in the order of their binds.

    ``there`` are the pods that may run. ``open`` are UIDs of pods that may have left, ``ending`` UIDs of other pods that are being deleted.
    Both are in the order of these events.
    """

    there: list[KnownPod]
    open: list[str]
    ending: list[str]

    @classmethod
    def of(cls, pods: list[KnownPod]) -> "_Prefix":
        """Return the prefix. Pods that were observed as gone before the last bind are omitted: they did not run beside the last pod."""
        last = max((known.bound for known in pods), default=0.0)
        there = [known for known in pods if not known.left or known.left_at >= last]
        leaving = sorted((known for known in there if known.left), key=lambda known: known.left_at)
        ending = sorted((known for known in there if known.ending is not None and not known.left), key=_told_to_end)
        return cls(there, [known.uid for known in leaving], [known.uid for known in ending])

    def without(self, away: Collection[str]) -> list[str]:
        """Return the UIDs without ``away``."""
        if not away:
            return [known.uid for known in self.there]
        return [known.uid for known in self.there if known.uid not in away]


def _told_to_end(known: KnownPod) -> float:
    return known.ending or 0.0


def _in_order(left: list[str]) -> Iterator[set[str]]:
    """Yield the sets of departed pods if pods left in the order in which they were observed as gone, the largest set first."""
    for first in range(len(left), -1, -1):
        yield set(left[:first])


def _in_any_order(left: list[str]) -> Iterator[set[str]]:
    for size in range(1, len(left)):
        for chosen in combinations(left, size):
            # ``_in_order`` has yielded the prefixes.
            if list(chosen) != left[:size]:
                yield set(chosen)


def possible_sets(old: list[KnownPod], new: list[KnownPod]) -> Iterator[list[str]]:
    """Yield sets of UIDs: all of ``old`` and a prefix of ``new``, in the order of their binds, without some pods that left."""
    everyone = [*old, *new]
    is_plain = not any(known.left or known.ending is not None for known in everyone)
    firsts = (everyone[:end] for end in range(len(everyone), len(old) - 1, -1))
    prefixes = [_Prefix(pods, [], []) if is_plain else _Prefix.of(pods) for pods in firsts]
    # In order of likelihood: departures in order; departures in any order; then departures that no event has shown: deleted pods in the
    # order of their deletion, any single pod, and any set of deleted pods.
    for ways in (_in_order, _in_any_order):
        for prefix in prefixes:
            yield from (prefix.without(away) for away in ways(prefix.open))
    for prefix in prefixes:
        yield from _with_unseen(prefix, (prefix.ending[:end] for end in range(1, len(prefix.ending) + 1)))
    for prefix in prefixes:
        yield from _with_unseen(prefix, ([unseen.uid] for unseen in prefix.there if not unseen.left))
    for prefix in prefixes:
        sizes = range(2, len(prefix.ending))
        yield from _with_unseen(prefix, (some for size in sizes for some in combinations(prefix.ending, size)))


def _with_unseen(prefix: _Prefix, unseen: Iterable[Collection[str]]) -> Iterator[list[str]]:
    """Yield the pods without each set of ``unseen`` and without the departed pods in order, the largest set first."""
    for some in unseen:
        yield from (prefix.without(away.union(some)) for away in _in_order(prefix.open))
