"""An in-memory Kubernetes API server on loopback for kubectl, Kopf and kubernetes-asyncio, with fault injection."""

from koord_numa.sandbox.apiserver.deletion import DeleteOptions
from koord_numa.sandbox.apiserver.direct import DirectStore, Subscription
from koord_numa.sandbox.apiserver.documents import JsonObject
from koord_numa.sandbox.apiserver.errors import ApiError
from koord_numa.sandbox.apiserver.faults import Asked, Effect, Fault, Faults, RequestLog
from koord_numa.sandbox.apiserver.selectors import parse_labels
from koord_numa.sandbox.apiserver.server import ApiServer, serve

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
    "serve",
]
