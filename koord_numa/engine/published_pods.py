"""Does a node's topology speak of the pods that are known to be there? It compares; what follows from it is for others to say."""

from collections.abc import Container, Iterator
from typing import Final

from koord_numa.engine.node_record import NodeRecord
from koord_numa.wire.fingerprint import comparable, fingerprint

ALL_PODS: Final = ("", "all")
"""Methods of fingerprints that cover every pod of the node; others leave pods out that nobody lists."""


def still_hidden(record: NodeRecord) -> set[str]:
    """
    Which of the pods that the node's topology did not show yet it still does not show, by uid, now that it has changed.

    A fingerprint tells exactly: exporters publish seldom and what they saw may be older than a pod's start, whatever arrives first. Pods
    start about in the order of their creation, so the newest are missing first. When the fingerprint speaks of other pods altogether, those
    that had started before the last topology as well are taken to be shown, or they would count twice forever. Without a fingerprint,
    so are all that have started.
    """
    waiting = {uid for uid in record.unpublished if not record.pods[uid].started}
    topology = record.topology
    if topology is None or not comparable(topology.fingerprint) or topology.fingerprint_method not in ALL_PODS:
        return waiting
    started = sorted(
        record.unpublished - waiting,
        key=lambda uid: (record.pods[uid].created, str(record.pods[uid].key)),
        reverse=True,
    )
    for hidden in (set[str](), *(waiting.union(started[:newest]) for newest in range(len(started) + 1))):
        if topology.fingerprint == fingerprint(_names(record, hidden)):
            record.doubted = set()
            return hidden
    old, record.doubted = record.doubted, set(started)
    return waiting.union(uid for uid in started if uid not in old)


def _names(record: NodeRecord, hidden: Container[str]) -> Iterator[tuple[str, str]]:
    return ((pod.key.namespace, pod.key.name) for uid, pod in record.pods.items() if uid not in hidden)


def speaks_of_others(record: NodeRecord) -> bool:
    """
    Is the fingerprint published with the topology that of other pods than those known to be there?

    Pods that the topology cannot show yet may be missing from it. Without a fingerprint that can be compared nothing is held against it.
    """
    topology = record.topology
    if topology is None or not comparable(topology.fingerprint) or topology.fingerprint_method not in ALL_PODS:
        return False
    every, shown = _names(record, ()), _names(record, record.unpublished)
    return topology.fingerprint not in (fingerprint(every), fingerprint(shown))
