"""
Convert JSON objects of Kubernetes and Koordinator to core types and back. Defines all annotation and label names.

The parsers are imported on first use: the node agent has little memory and needs the names, but not the models.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from koord_numa.wire.errors import WireError
    from koord_numa.wire.nodes import parse_node
    from koord_numa.wire.pods import parse_pod
    from koord_numa.wire.rebinds import parse_rebind, rebind_status
    from koord_numa.wire.topologies import parse_topology

__all__ = ["WireError", "parse_node", "parse_pod", "parse_rebind", "parse_topology", "rebind_status"]

_HOME: Final = {
    "WireError": "errors",
    "parse_node": "nodes",
    "parse_pod": "pods",
    "parse_rebind": "rebinds",
    "parse_topology": "topologies",
    "rebind_status": "rebinds",
}


def __getattr__(name: str) -> Any:
    """Import the module that has the name (PEP 562)."""
    if home := _HOME.get(name):
        return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
