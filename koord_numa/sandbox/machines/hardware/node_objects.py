"""Node objects as the kubelet of a simulated machine would register and update them."""

from typing import Any

import orjson

from koord_numa.core.quantity import format_amount
from koord_numa.sandbox.machines.hardware.description import NodeDescription, Style
from koord_numa.wire import names

Json = dict[str, Any]


def node_object(node: NodeDescription, now: str) -> Json:
    """The Node with labels, annotations, taints and status. ``now`` is an RFC 3339 time."""
    metadata: Json = {"name": node.name, "labels": node.all_labels}
    annotations = _annotations(node)
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {
            "taints": [{"key": taint.key, "value": taint.value, "effect": taint.effect.value} for taint in node.taints]
        },
        "status": node_status(node, now),
    }


def node_status(node: NodeDescription, now: str) -> Json:
    """What the node has, what it offers, and that it is ready."""
    return {
        "capacity": {name: format_amount(name, amount) for name, amount in node.capacity.items()},
        "allocatable": {name: format_amount(name, amount) for name, amount in node.allocatable.items()},
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "simulated kubelet is ready",
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }
        ],
        "addresses": [{"type": "Hostname", "address": node.name}],
        "nodeInfo": {"kubeletVersion": "v1.36.0-simulated", "operatingSystem": "linux", "architecture": "amd64"},
    }


def reservation(node: NodeDescription) -> str:
    """Koordinator's reservation annotation, which the agent repeats on the topology."""
    return orjson.dumps({"reservedCPUs": str(node.reserved)} if node.reserved else {}).decode()


def _annotations(node: NodeDescription) -> dict[str, str]:
    found: dict[str, str] = {}
    if node.style is Style.KOORDINATOR and node.reserved:
        found[names.RESERVATION] = reservation(node)
    if node.amplification:
        found[names.AMPLIFICATION] = orjson.dumps(dict(sorted(node.amplification.items()))).decode()
    return found
