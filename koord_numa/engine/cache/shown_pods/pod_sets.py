"""
Which pods a topology of a kubelet-owned node shows: sets of pods that may have run at one moment, likeliest first, against its fingerprint.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import inf
from typing import Final

from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.kubelet.node_config import NodeConfig
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.vocabulary import INIT
from koord_numa.core.resources import CPU, MILLI
from koord_numa.engine.cache.shown_pods.known_pod import KnownPod
from koord_numa.engine.cache.shown_pods.namesakes import ways_to_show
from koord_numa.wire.node.fingerprint import comparable, fingerprint_of, pod_hash

ALL: Final = ("", "all")
EXCLUSIVE: Final = "with-exclusive-resources"

MOST_SETS: Final = 3_000
"""So many sets of pods are compared with a fingerprint at most."""


@dataclass(frozen=True, slots=True)
class Reading:
    """
    What a topology says of pods. ``counted`` are those that its fingerprint speaks of, without one those that hold something of NUMA nodes
    once they run. ``shown`` are those that it shows, ``None`` where that is not known; ``tells``: it has a fingerprint. ``ways`` are all
    sets that it may show by their names, first ``shown``, and ``namesakes`` those in ``shown`` that are not in all of them.
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
    Which of these pods, by uid, a topology shows. ``last``: those that the last understood one showed. It was made at ``oldest`` or later.
    """
    told = tells(topology)
    # Method ``all`` counts every pod, also those that hold nothing of NUMA nodes.
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


@dataclass(slots=True)
class LastReading:
    """
    What the last topology says of pods. Exporters publish every period, most of the time with the fingerprint of the period before: while
    that and the pods are the same, so is what it says, and no sets are tried again.
    """

    _topology: NodeResourceTopology | None = None
    _follows_from: tuple[object, ...] = ()  # what else was read; empty if it is out of date
    _reading: Reading | None = None

    def of(
        self, frame: NodeConfig, pods: Mapping[str, KnownPod], last: frozenset[str], oldest: float = -inf
    ) -> Reading:
        """As ``read`` of the topology in ``frame``."""
        topology, known = frame.topology, self._reading
        # One topology says one thing: what is learned from it changes ``pods`` and ``last``, and not what it shows.
        if known is not None and self._topology is topology:
            return known
        follows_from = topology.fingerprint, topology.fingerprint_method, frame.node, frame.devices, last, tuple(pods)
        if known is None or known.namesakes or self._follows_from != follows_from:
            known = read(topology, frame, pods, last, oldest)
        self._topology, self._follows_from, self._reading = topology, follows_from, known
        return known

    def pod_started(self) -> None:
        """The order of pods is another one: the next topology is read by it."""
        self._follows_from = ()

    def forget(self) -> None:
        """A pod came or left: the topology may say something else of it."""
        self._topology, self._follows_from, self._reading = None, (), None


def sets(pods: Iterable[KnownPod], counted: Collection[str], last: Collection[str]) -> Iterator[list[str]]:
    """
    Sets of pods that may have run at one moment since the last understood topology: the first so many binds, less some that left.

    Kubelets admit pods in the order of their binds, so a later pod is there only if those before it were.
    """
    order = sorted((known for known in pods if known.uid in counted), key=lambda known: known.order)
    old = [known for known in order if known.uid in last]
    new = [known for known in order if known.uid not in last]
    return possible_sets(old, new)


def tells(topology: NodeResourceTopology) -> bool:
    """Does the topology carry a fingerprint that can be compared?"""
    return comparable(topology.fingerprint) and topology.fingerprint_method in (*ALL, EXCLUSIVE)


def is_exclusive(demand: PodDemand, frame: NodeConfig) -> bool:
    """
    Does resource-topology-exporter count the pod as one with exclusive resources?

    It does when a running container has exclusive CPUs, memory of a NUMA node, or devices near one (as the pod resources API lists them).
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
    """Do the kubelet's managers give any container of the pod something?"""
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
    """Of each set the pods that the managers give anything; sets that come to the same only once."""
    found: dict[frozenset[str], Sequence[str]] = {}
    for one in sets_of_pods:
        tied = [uid for uid in one if is_tied(pod_demand(pods[uid].request), frame)]
        found.setdefault(frozenset(tied), tied)
    return [*found.values()]


def has_cpus_for(known: KnownPod, pods: Iterable[KnownPod], frame: NodeConfig) -> bool:
    """
    Are all CPUs that the node gives away enough for all that these pods ever hold at once? Asked only of pods with odd numbers of CPUs,
    whose refusal tells of cores where they are.
    """
    if not [count for count in pod_demand(known.request).counts if count % 2]:
        return False
    there = sum(zone.allocatable.get(CPU, 0) for zone in frame.topology.zones) // MILLI
    return sum([each.cpus for each in pods]) <= there


@dataclass(frozen=True, slots=True)
class _Prefix:
    """
    The first so many pods in the order of their binds. ``open`` are uids of pods of which it is open whether they had left, ``ending``
    of others that were told to end, the first one first.
    """

    there: list[KnownPod]
    open: list[str]
    ending: list[str]

    @classmethod
    def of(cls, pods: list[KnownPod]) -> "_Prefix":
        """Who was seen gone before the last of these was bound cannot have run beside it."""
        last = max((known.bound for known in pods), default=0.0)
        there = [known for known in pods if not known.left or known.left_at >= last]
        leaving = sorted((known for known in there if known.left), key=lambda known: known.left_at)
        ending = sorted((known for known in there if known.ending is not None and not known.left), key=_told_to_end)
        return cls(there, [known.uid for known in leaving], [known.uid for known in ending])

    def without(self, away: Collection[str]) -> list[str]:
        """The uids of those that are there."""
        if not away:
            return [known.uid for known in self.there]
        return [known.uid for known in self.there if known.uid not in away]


def _told_to_end(known: KnownPod) -> float:
    return known.ending or 0.0


def _in_order(left: list[str]) -> Iterator[set[str]]:
    """Pods left about in the order in which they were seen gone."""
    for first in range(len(left), -1, -1):
        yield set(left[:first])


def _in_any_order(left: list[str]) -> Iterator[set[str]]:
    for size in range(1, len(left)):
        for chosen in combinations(left, size):
            # Those that ``_in_order`` has yielded already are skipped.
            if list(chosen) != left[:size]:
                yield set(chosen)


def possible_sets(old: list[KnownPod], new: list[KnownPod]) -> Iterator[list[str]]:
    """The uids of each set: all of ``old`` and the first so many of ``new``, in the order of their binds, less some that left."""
    everyone = [*old, *new]
    is_plain = not any(known.left or known.ending is not None for known in everyone)
    firsts = (everyone[:end] for end in range(len(everyone), len(old) - 1, -1))
    prefixes = [_Prefix(pods, [], []) if is_plain else _Prefix.of(pods) for pods in firsts]
    # In order of likelihood: all prefixes with departures in order, then those in any order, then with pods that no event has shown gone:
    # those that were to end, as they were told to, any one pod, and of those that were to end any.
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
    """Without these either, and ever fewer of those that have left."""
    for some in unseen:
        yield from (prefix.without(away.union(some)) for away in _in_order(prefix.open))
