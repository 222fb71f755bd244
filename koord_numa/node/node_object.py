"""What the agent reads of its Node: uid, and the CPUs that the node keeps for itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.wire import names


@dataclass(frozen=True, slots=True)
class NodeReservation:
    """The Node's uid, the CPUs of ``node.koordinator.sh/reservation`` and the text that koordlet would repeat on the NRT."""

    uid: str = ""
    cpus: CpuSet = EMPTY
    text: str = "{}"


def read_reservation(node: Mapping[str, Any] | None) -> NodeReservation:
    """What a Node says; a reservation that is malformed reserves nothing, as Koordinator's readers treat it."""
    metadata = (node or {}).get("metadata") or {}
    uid = str(metadata.get("uid", ""))
    text = (metadata.get("annotations") or {}).get(names.RESERVATION)
    try:
        cpus = CpuSet.parse((orjson.loads(text) or {}).get("reservedCPUs") or "") if text else EMPTY
    except (ValueError, TypeError, AttributeError):
        cpus = EMPTY
    # Made of what was understood: a malformed text of the Node is not repeated on the topology.
    return NodeReservation(uid, cpus, orjson.dumps({"reservedCPUs": str(cpus)}).decode() if cpus else "{}")
