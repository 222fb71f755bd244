"""An in-memory Kubernetes API server on loopback for kubectl, Kopf and kubernetes-asyncio, with fault injection."""

from koord_numa.sandbox.apiserver.direct import DirectStore, Subscription
from koord_numa.sandbox.apiserver.errors import ApiError
from koord_numa.sandbox.apiserver.faults import Effect, Fault, Faults
from koord_numa.sandbox.apiserver.objects.documents import JsonObject
from koord_numa.sandbox.apiserver.server import ApiServer, serve
from koord_numa.sandbox.apiserver.serving.request_log import Asked, RequestLog
from koord_numa.sandbox.apiserver.store.deletion import DeleteOptions

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
    "serve",
]
