"""Read the Node of the agent: UID, reserved CPUs and CPU isolation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import isolation_words
from koord_numa.wire import names


@dataclass(frozen=True, slots=True)
class ReservedByNode:
    """
    The Node's UID, the CPUs of ``node.koordinator.sh/reservation``, and the text that koordlet would repeat on the NRT.

    ``isolation`` are the words of the label ``cpu-isolation``, which apply to all pods with a cpuset.
    """

    uid: str = ""
    cpus: CpuSet = EMPTY
    text: str = "{}"
    isolation: frozenset[str] = frozenset()


def read_reservation(node: Mapping[str, Any] | None) -> ReservedByNode:
    """Parse the reservation of a Node. A malformed one reserves nothing, as in Koordinator."""
    metadata = (node or {}).get("metadata") or {}
    uid = str(metadata.get("uid", ""))
    text = (metadata.get("annotations") or {}).get(names.RESERVATION)
    try:
        cpus = CpuSet.parse((orjson.loads(text) or {}).get("reservedCPUs") or "") if text else EMPTY
    except (ValueError, TypeError, AttributeError):
        cpus = EMPTY
    # Built from parsed values: a malformed text of the Node is not repeated on the topology.
    text = orjson.dumps({"reservedCPUs": str(cpus)}).decode() if cpus else "{}"
    words = isolation_words((metadata.get("labels") or {}).get(names.NODE_CPU_ISOLATION, ""))
    return ReservedByNode(uid, cpus, text, words)
