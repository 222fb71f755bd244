"""JSON objects of Kubernetes and Koordinator to core types and back: the only path with annotation and label names."""

from koord_numa.wire.errors import WireError
from koord_numa.wire.nodes import parse_node
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.rebinds import parse_rebind, rebind_status
from koord_numa.wire.resource_status import resource_status
from koord_numa.wire.topologies import parse_topology

__all__ = ["WireError", "parse_node", "parse_pod", "parse_rebind", "parse_topology", "rebind_status", "resource_status"]
