"""Does a node's topology speak of the pods that are known to be there? It compares; what follows from it is for others to say."""

from typing import Final

from koord_numa.engine.node_record import NodeRecord
from koord_numa.wire.fingerprint import comparable, fingerprint

ALL_PODS: Final = ("", "all")
"""Methods of fingerprints that cover every pod of the node; others leave pods out that nobody lists."""


def speaks_of_others(record: NodeRecord) -> bool:
    """
    Is the fingerprint published with the topology that of other pods than those known to be there?

    Pods that the topology cannot show yet may be missing from it. Without a fingerprint that can be compared nothing is held against it.
    """
    topology = record.topology
    if topology is None or not comparable(topology.fingerprint) or topology.fingerprint_method not in ALL_PODS:
        return False
    every = [(pod.key.namespace, pod.key.name) for pod in record.pods.values()]
    shown = [(pod.key.namespace, pod.key.name) for uid, pod in record.pods.items() if uid not in record.unpublished]
    return topology.fingerprint not in (fingerprint(every), fingerprint(shown))
