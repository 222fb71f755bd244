"""An in-memory Kubernetes API server on loopback for kubectl, Kopf and kubernetes-asyncio, with fault injection."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from koord_numa.sandbox.apiserver.deletion import DeleteOptions
    from koord_numa.sandbox.apiserver.direct import DirectStore, Subscription
    from koord_numa.sandbox.apiserver.documents import JsonObject
    from koord_numa.sandbox.apiserver.errors import ApiError
    from koord_numa.sandbox.apiserver.faults import Asked, Effect, Fault, Faults, RequestLog
    from koord_numa.sandbox.apiserver.selectors import parse_labels
    from koord_numa.sandbox.apiserver.server import ApiServer

_MODULES: Final = {
    "deletion": "DeleteOptions",
    "direct": "DirectStore Subscription",
    "documents": "JsonObject",
    "errors": "ApiError",
    "faults": "Asked Effect Fault Faults RequestLog",
    "selectors": "parse_labels",
    "server": "ApiServer",
}
"""The names of the facade by module."""

_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "ApiError",
    "ApiServer",
    "Asked",
    "DeleteOptions",
    "DirectStore",
    "Effect",
    "Fault",
    "Faults",
    "JsonObject",
    "RequestLog",
    "Subscription",
    "parse_labels",
]


def __getattr__(name: str) -> Any:
    """Import a module on first use: a command with ``-l`` needs label selectors, but neither the server nor aiohttp."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
