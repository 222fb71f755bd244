"""
The resources that the scheduler uses, requests as values (verb, object and subresource), and the mapping of responses to errors.

A ``Call`` has the URL path and the RBAC rule that permits it, so that an error can name the missing rule.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

import orjson

from koord_numa.core.objects.constraints import WorkloadKind
from koord_numa.core.objects.gangs import Dialect
from koord_numa.core.value_objects import ValueObject
from koord_numa.ports import (
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    Unauthenticated,
    Unavailable,
    UnknownOutcome,
)
from koord_numa.wire import names

METHODS: Final = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
"""HTTP method by Kubernetes verb."""

WRITES: Final = frozenset({"create", "update", "patch", "delete"})


class Resource(ValueObject):
    """A resource in an API version. An empty ``group`` is the core group."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the URL path of an object, of a namespace's objects, or of all objects."""
        collection = _collection(self, namespace)
        # Names come from objects. Quoting prevents path traversal.
        return f"{collection}/{quote(name, safe='')}" if name else collection


@lru_cache(maxsize=1024)  # two requests per pod, and few namespaces
def _collection(resource: Resource, namespace: str) -> str:
    """Return the URL path of a namespace's objects, or of all objects."""
    # The core group has another prefix and no group name.
    parts = ["/api" if not resource.group else f"/apis/{resource.group}", resource.version]
    if namespace and resource.namespaced:
        parts += ["namespaces", quote(namespace, safe="")]
    return "/".join((*parts, resource.plural))


PODS: Final = Resource("", "v1", "pods")
NODES: Final = Resource("", "v1", "nodes", namespaced=False)
NAMESPACES: Final = Resource("", "v1", "namespaces", namespaced=False)
VOLUMES: Final = Resource("", "v1", "persistentvolumes", namespaced=False)
CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims")
CSI_NODES: Final = Resource("storage.k8s.io", "v1", "csinodes", namespaced=False)
CSI_DRIVERS: Final = Resource("storage.k8s.io", "v1", "csidrivers", namespaced=False)
STORAGE_CAPACITIES: Final = Resource("storage.k8s.io", "v1", "csistoragecapacities")
ATTACHMENTS: Final = Resource("storage.k8s.io", "v1", "volumeattachments", namespaced=False)
STORAGE_CLASSES: Final = Resource("storage.k8s.io", "v1", "storageclasses", namespaced=False)
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims")
RESOURCE_CLAIM_TEMPLATES: Final = Resource("resource.k8s.io", "v1", "resourceclaimtemplates")
RESOURCE_SLICES: Final = Resource("resource.k8s.io", "v1", "resourceslices", namespaced=False)
DEVICE_CLASSES: Final = Resource("resource.k8s.io", "v1", "deviceclasses", namespaced=False)
TAINT_RULES: Final = tuple(
    Resource("resource.k8s.io", version, "devicetaintrules", namespaced=False) for version in ("v1", "v1beta2")
)
"""Versions, the newest first. Kubernetes 1.36 serves only v1beta2."""
WORKLOADS: Final = {
    WorkloadKind.SERVICE: Resource("", "v1", "services"),
    WorkloadKind.REPLICATION_CONTROLLER: Resource("", "v1", "replicationcontrollers"),
    WorkloadKind.REPLICA_SET: Resource("apps", "v1", "replicasets"),
    WorkloadKind.STATEFUL_SET: Resource("apps", "v1", "statefulsets"),
}
"""Workload resources by which pods are spread."""
BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets")
POD_GROUPS: Final = {
    Dialect.KUBERNETES: tuple(
        Resource("scheduling.k8s.io", version, "podgroups") for version in ("v1beta1", "v1alpha2")
    ),
    Dialect.KOORDINATOR: (Resource("scheduling.sigs.k8s.io", "v1alpha1", "podgroups"),),
    Dialect.SCHEDULER_PLUGINS: (Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups"),),
}
"""Versions per dialect, the newest first. Kubernetes 1.36 serves only v1alpha2."""
PRIORITY_CLASSES: Final = Resource("scheduling.k8s.io", "v1", "priorityclasses", namespaced=False)
TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
ACCESS_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False)
EVENTS: Final = Resource("events.k8s.io", "v1", "events")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases")
TOPOLOGIES: Final = tuple(
    Resource(names.TOPOLOGY_GROUP, version, names.TOPOLOGY_PLURAL, namespaced=False)
    for version in reversed(names.TOPOLOGY_VERSIONS)
)
"""Versions to try, the newest first. A cluster may serve only an older version."""
DEVICES: Final = Resource(names.SCHEDULING_GROUP, names.DEVICE_VERSION, names.DEVICE_PLURAL, namespaced=False)
REBINDS: Final = Resource(names.SCHEDULING_GROUP, names.REBIND_VERSION, names.REBIND_PLURAL, namespaced=False)


class Call(ValueObject):
    """A request to the API server."""

    verb: str
    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def method(self) -> str:
        """The HTTP method."""
        return METHODS[self.verb]

    @property
    def writes(self) -> bool:
        """True if the request changes an object. Its outcome is then unknown without a response."""
        return self.verb in WRITES

    @property
    def path(self) -> str:
        """The URL path from the server's root."""
        path = self.resource.path(self.namespace, self.name)
        return f"{path}/{self.subresource}" if self.subresource else path

    @property
    def rule(self) -> str:
        """The RBAC rule that permits the request: ``create pods/binding``."""
        plural = f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural
        return f"{self.verb} {plural}.{self.resource.group}" if self.resource.group else f"{self.verb} {plural}"

    def __str__(self) -> str:
        who = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.rule} {who}" if who else self.rule


# Mapping of HTTP statuses and connection errors to the errors in ``ports``.
#
# The essential distinction: a write that was never sent is ``Unavailable``, a write that was sent without a response is
# ``UnknownOutcome``.

LONGEST_MESSAGE: Final = 500
"""Maximum characters of a server message that are kept. Proxies respond with whole pages."""

AMBIGUOUS: Final = frozenset({500, 502, 504})
"""Server errors after which a write may have been carried out: etcd or a proxy timed out.

503 and 429 are sent before a write is carried out.
"""


class Expired(ClusterError):
    """The resourceVersion or continue token is too old (410): the list or watch must start over."""


_PLAIN: Final[Mapping[int, Callable[[str], ClusterError]]] = {
    401: Unauthenticated,
    404: Gone,
    409: Conflict,
    410: Expired,
}


def refusal(call: Call, status: int, headers: Mapping[str, str], body: bytes) -> ClusterError:
    """Return the error for an HTTP status of 300 and above."""
    message = f"{call}: {status} {_message(body)}".rstrip()
    if (plain := _PLAIN.get(status)) is not None:
        return plain(message)
    if status == 403:
        return Forbidden(message, call.rule)
    # 503 and 429 are sent before a write is carried out. The ambiguous statuses matter only for writes.
    if status == 429 or status >= 500:
        if call.writes and status in AMBIGUOUS:
            return UnknownOutcome(message)
        return Unavailable(message, _retry_after(headers))
    return Invalid(message)


def _message(body: bytes) -> str:
    """Return the ``message`` of a ``Status``, or the beginning of any other response."""
    try:
        status: Any = orjson.loads(body)
    # Proxies and other servers respond with HTML.
    except orjson.JSONDecodeError:
        status = None
    if isinstance(status, dict) and isinstance(status.get("message"), str):
        return str(status["message"])[:LONGEST_MESSAGE]
    return body[:LONGEST_MESSAGE].decode("utf-8", "replace")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After. Its date form is ignored, because Kubernetes does not use it."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
