"""Does a node's topology speak of the pods that are known to be there? It compares; what follows from it is for others to say."""

from collections.abc import Container, Iterator
from typing import Final

from koord_numa.core.request import Pod
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.wire.fingerprint import comparable, fingerprint

ALL_PODS: Final = ("", "all")
"""Methods of fingerprints that cover every pod of the node; others leave pods out that nobody lists."""
RECENT: Final = 180.0
"""Seconds after which every exporter has seen a pod that runs: three times the usual interval of a minute."""
FEW: Final = 8
"""So many of the newest pods at most are left out in turn to explain a fingerprint, where no more are recent."""


def still_hidden(record: NodeInfo) -> set[str]:
    """
    Which of the pods that the node's topology did not show yet it still does not show, by uid, now that it has changed.

    A fingerprint tells exactly: exporters publish seldom and what they saw may be older than a pod's start, whatever arrives first. Pods
    start about in the order of their creation, so the newest are missing first. When the fingerprint speaks of other pods altogether, those
    that had started before the last topology as well are taken to be shown, or they would count twice forever. Without a fingerprint,
    so are all that have started.
    """
    waiting = {uid for uid in record.unpublished if not record.pods[uid].started}
    if not _tells(record):
        return waiting
    started = sorted(record.unpublished - waiting, key=lambda uid: _age(record.pods[uid]), reverse=True)
    for hidden in (set[str](), *(waiting.union(started[:newest]) for newest in range(len(started) + 1))):
        if _shows_all_but(record, hidden):
            record.doubted = set()
            return hidden
    old, record.doubted = record.doubted, set(started)
    return waiting.union(uid for uid in started if uid not in old)


def hidden_from_the_first(record: NodeInfo) -> set[str]:
    """
    As ``still_hidden``, for a topology that may be older than pods that ran already when they were first seen (``undated``).

    So it is after a restart, or when another scheduler's pod was missed. A fingerprint tells exactly, if what is missing are the newest.
    Otherwise those are taken to be hidden that started less than ``RECENT`` before the last start on the node: what ran for longer an
    exporter has seen; a kubelet tells the time of the start with its first word about a pod. All times are of one machine's clock.
    """
    known = record.unpublished.difference(record.undated)
    newest = sorted(
        record.undated, key=lambda uid: (record.pods[uid].started_at, *_age(record.pods[uid])), reverse=True
    )
    recent = _recent(record)
    if _tells(record):
        most = min(len(newest), max(FEW, len(recent)))
        for hidden in (set[str](), *(known.union(newest[:count]) for count in range(most + 1))):
            if _shows_all_but(record, hidden):
                record.undated.clear()
                return hidden
    return known | recent


def _recent(record: NodeInfo) -> set[str]:
    last = max((pod.started_at for pod in record.pods.values()), default=0.0)
    starts = {uid: record.pods[uid].started_at for uid in record.undated}
    return {uid for uid, start in starts.items() if start > last - RECENT and start}


def _age(pod: Pod) -> tuple[float, str]:
    return pod.created, str(pod.key)


def _tells(record: NodeInfo) -> bool:
    """Does the topology carry a fingerprint that can be compared?"""
    topology = record.topology
    return topology is not None and comparable(topology.fingerprint) and topology.fingerprint_method in ALL_PODS


def _shows_all_but(record: NodeInfo, hidden: Container[str]) -> bool:
    return record.topology is not None and record.topology.fingerprint == fingerprint(_names(record, hidden))


def _names(record: NodeInfo, hidden: Container[str]) -> Iterator[tuple[str, str]]:
    return ((pod.key.namespace, pod.key.name) for uid, pod in record.pods.items() if uid not in hidden)


def speaks_of_others(record: NodeInfo) -> bool:
    """
    Is the fingerprint published with the topology that of other pods than those known to be there?

    Pods that the topology cannot show yet may be missing from it. Without a fingerprint that can be compared nothing is held against it.
    """
    return _tells(record) and not _shows_all_but(record, ()) and not _shows_all_but(record, record.unpublished)
