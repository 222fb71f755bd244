"""
The ``Kind`` type, the table of built-in kinds, and their OpenAPI schemas.

``crds`` creates the kinds of CustomResourceDefinitions.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import orjson

from koord_numa.sandbox.apiserver.documents import JsonObject

FieldPath = tuple[str, ...]


class KindScope(Enum):
    """Scope of a kind: namespaced or cluster-wide."""

    NAMESPACED = "Namespaced"
    CLUSTER = "Cluster"


class Generation(Enum):
    """Rule for ``metadata.generation``.

    It never increases, or with every change outside metadata (and outside a separate status).
    """

    NONE = "none"
    COUNTED = "counted"


ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
CREATE_ONLY: Final = ("create",)

COMMON_FIELDS: Final[Mapping[str, FieldPath]] = {
    "metadata.name": ("metadata", "name"),
    "metadata.namespace": ("metadata", "namespace"),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource of an API group: its names, scope, versions and selectable fields."""

    group: str
    versions: tuple[str, ...]  # served versions, the preferred version first
    kind: str
    plural: str
    scope: KindScope = KindScope.NAMESPACED
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    generation: Generation = Generation.NONE
    verbs: tuple[str, ...] = ALL_VERBS
    categories: tuple[str, ...] = ()
    fields: Mapping[str, FieldPath] = field(
        default_factory=lambda: COMMON_FIELDS
    )  # field-selector labels and their paths
    storage_version: str = ""
    custom: bool = False
    table: str = ""  # storage table, if it differs from the qualified name

    @property
    def namespaced(self) -> bool:
        """True if objects have a namespace."""
        return self.scope is KindScope.NAMESPACED

    @property
    def singular(self) -> str:
        """The lower-case singular name."""
        return self.kind.lower()

    @property
    def list_kind(self) -> str:
        """The kind of a list of these objects."""
        return f"{self.kind}List"

    @property
    def qualified(self) -> str:
        """The name in messages and in the storage: ``pods``, ``leases.coordination.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def stored_in(self) -> str:
        """The storage table. The two event APIs share a table."""
        return self.table or self.qualified

    @property
    def stored_as(self) -> str:
        """The apiVersion in which objects are stored."""
        if self.table:
            return "v1"
        return self.api_version(self.storage_version or self.versions[0])

    @property
    def has_status(self) -> bool:
        """True if ``status`` is written only through its own subresource."""
        return "status" in self.subresources

    def api_version(self, version: str) -> str:
        """Return ``v1`` for the core group and ``group/version`` for other groups."""
        return f"{self.group}/{version}" if self.group else version


_POD_FIELDS: Final[Mapping[str, FieldPath]] = {
    **COMMON_FIELDS,
    "spec.nodeName": ("spec", "nodeName"),
    "spec.restartPolicy": ("spec", "restartPolicy"),
    "spec.schedulerName": ("spec", "schedulerName"),
    "spec.serviceAccountName": ("spec", "serviceAccountName"),
    "spec.hostNetwork": ("spec", "hostNetwork"),
    "status.phase": ("status", "phase"),
    "status.podIP": ("status", "podIP"),
    "status.nominatedNodeName": ("status", "nominatedNodeName"),
}
_EVENT_FIELDS: Final[Mapping[str, FieldPath]] = {
    **COMMON_FIELDS,
    **{
        f"{prefix}.{name}": ("involvedObject", name)
        for prefix in ("involvedObject", "regarding")
        for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    },
    "reason": ("reason",),
    "reportingComponent": ("reportingComponent",),
    "reportingController": ("reportingComponent",),
    "source": ("source", "component"),
    "type": ("type",),
}
_ONE: Final = ("v1",)
_STATUS: Final = ("status",)
_CLUSTER: Final = KindScope.CLUSTER
_COUNTED: Final = Generation.COUNTED

BUILTIN: Final = (
    Kind("", _ONE, "Binding", "bindings", verbs=CREATE_ONLY),
    Kind("", _ONE, "ConfigMap", "configmaps", short_names=("cm",)),
    Kind("", _ONE, "Endpoints", "endpoints", short_names=("ep",)),
    Kind("", _ONE, "Event", "events", short_names=("ev",), fields=_EVENT_FIELDS),
    Kind("", _ONE, "LimitRange", "limitranges", short_names=("limits",)),
    Kind(
        "",
        _ONE,
        "Namespace",
        "namespaces",
        _CLUSTER,
        ("ns",),
        ("status", "finalize"),
        verbs=tuple(v for v in ALL_VERBS if v != "deletecollection"),
        fields={**COMMON_FIELDS, "status.phase": ("status", "phase")},
    ),
    Kind(
        "",
        _ONE,
        "Node",
        "nodes",
        _CLUSTER,
        ("no",),
        _STATUS,
        fields={**COMMON_FIELDS, "spec.unschedulable": ("spec", "unschedulable")},
    ),
    Kind("", _ONE, "PersistentVolumeClaim", "persistentvolumeclaims", short_names=("pvc",), subresources=_STATUS),
    Kind("", _ONE, "PersistentVolume", "persistentvolumes", _CLUSTER, ("pv",), _STATUS),
    Kind(
        "",
        _ONE,
        "Pod",
        "pods",
        short_names=("po",),
        subresources=("binding", "eviction", "log", "portforward", "resize", "status"),
        generation=_COUNTED,
        categories=("all",),
        fields=_POD_FIELDS,
    ),
    Kind("", _ONE, "PodTemplate", "podtemplates"),
    Kind(
        "",
        _ONE,
        "ReplicationController",
        "replicationcontrollers",
        short_names=("rc",),
        subresources=_STATUS,
        generation=_COUNTED,
        categories=("all",),
    ),
    Kind("", _ONE, "ResourceQuota", "resourcequotas", short_names=("quota",), subresources=_STATUS),
    Kind("", _ONE, "Secret", "secrets", fields={**COMMON_FIELDS, "type": ("type",)}),
    Kind("", _ONE, "ServiceAccount", "serviceaccounts", short_names=("sa",)),
    Kind("", _ONE, "Service", "services", short_names=("svc",), subresources=_STATUS, categories=("all",)),
    Kind(
        "admissionregistration.k8s.io",
        _ONE,
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        _CLUSTER,
        (),
        _STATUS,
        _COUNTED,
    ),
    Kind(
        "admissionregistration.k8s.io",
        _ONE,
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        _CLUSTER,
        (),
        (),
        _COUNTED,
    ),
    Kind(
        "apiextensions.k8s.io",
        _ONE,
        "CustomResourceDefinition",
        "customresourcedefinitions",
        _CLUSTER,
        ("crd", "crds"),
        _STATUS,
        _COUNTED,
        categories=("api-extensions",),
    ),
    Kind("apps", _ONE, "ControllerRevision", "controllerrevisions"),
    Kind(
        "apps", _ONE, "DaemonSet", "daemonsets", KindScope.NAMESPACED, ("ds",), _STATUS, _COUNTED, categories=("all",)
    ),
    Kind(
        "apps",
        _ONE,
        "Deployment",
        "deployments",
        KindScope.NAMESPACED,
        ("deploy",),
        _STATUS,
        _COUNTED,
        categories=("all",),
    ),
    Kind(
        "apps", _ONE, "ReplicaSet", "replicasets", KindScope.NAMESPACED, ("rs",), _STATUS, _COUNTED, categories=("all",)
    ),
    Kind(
        "apps",
        _ONE,
        "StatefulSet",
        "statefulsets",
        KindScope.NAMESPACED,
        ("sts",),
        _STATUS,
        _COUNTED,
        categories=("all",),
    ),
    Kind("authentication.k8s.io", _ONE, "SelfSubjectReview", "selfsubjectreviews", _CLUSTER, verbs=CREATE_ONLY),
    Kind("authentication.k8s.io", _ONE, "TokenReview", "tokenreviews", _CLUSTER, verbs=CREATE_ONLY),
    Kind("authorization.k8s.io", _ONE, "LocalSubjectAccessReview", "localsubjectaccessreviews", verbs=CREATE_ONLY),
    Kind(
        "authorization.k8s.io", _ONE, "SelfSubjectAccessReview", "selfsubjectaccessreviews", _CLUSTER, verbs=CREATE_ONLY
    ),
    Kind(
        "authorization.k8s.io", _ONE, "SelfSubjectRulesReview", "selfsubjectrulesreviews", _CLUSTER, verbs=CREATE_ONLY
    ),
    Kind("authorization.k8s.io", _ONE, "SubjectAccessReview", "subjectaccessreviews", _CLUSTER, verbs=CREATE_ONLY),
    Kind("batch", _ONE, "CronJob", "cronjobs", KindScope.NAMESPACED, ("cj",), _STATUS, _COUNTED, categories=("all",)),
    Kind("batch", _ONE, "Job", "jobs", KindScope.NAMESPACED, (), _STATUS, _COUNTED, categories=("all",)),
    Kind("coordination.k8s.io", _ONE, "Lease", "leases"),
    Kind("discovery.k8s.io", _ONE, "EndpointSlice", "endpointslices", generation=_COUNTED),
    Kind("events.k8s.io", _ONE, "Event", "events", short_names=("ev",), fields=_EVENT_FIELDS, table="events"),
    Kind("networking.k8s.io", _ONE, "Ingress", "ingresses", KindScope.NAMESPACED, ("ing",), _STATUS, _COUNTED),
    Kind(
        "networking.k8s.io", _ONE, "NetworkPolicy", "networkpolicies", KindScope.NAMESPACED, ("netpol",), (), _COUNTED
    ),
    Kind("node.k8s.io", _ONE, "RuntimeClass", "runtimeclasses", _CLUSTER),
    Kind(
        "policy", _ONE, "PodDisruptionBudget", "poddisruptionbudgets", KindScope.NAMESPACED, ("pdb",), _STATUS, _COUNTED
    ),
    Kind("rbac.authorization.k8s.io", _ONE, "ClusterRole", "clusterroles", _CLUSTER),
    Kind("rbac.authorization.k8s.io", _ONE, "ClusterRoleBinding", "clusterrolebindings", _CLUSTER),
    Kind("rbac.authorization.k8s.io", _ONE, "Role", "roles"),
    Kind("rbac.authorization.k8s.io", _ONE, "RoleBinding", "rolebindings"),
    Kind("resource.k8s.io", _ONE, "DeviceClass", "deviceclasses", _CLUSTER, (), (), _COUNTED),
    Kind("resource.k8s.io", ("v1", "v1beta2"), "DeviceTaintRule", "devicetaintrules", _CLUSTER, (), _STATUS, _COUNTED),
    Kind("resource.k8s.io", _ONE, "ResourceClaim", "resourceclaims", KindScope.NAMESPACED, (), _STATUS),
    Kind("resource.k8s.io", _ONE, "ResourceClaimTemplate", "resourceclaimtemplates"),
    Kind(
        "resource.k8s.io",
        _ONE,
        "ResourceSlice",
        "resourceslices",
        _CLUSTER,
        (),
        (),
        _COUNTED,
        fields={**COMMON_FIELDS, "spec.nodeName": ("spec", "nodeName"), "spec.driver": ("spec", "driver")},
    ),
    Kind("scheduling.k8s.io", ("v1beta1",), "PodGroup", "podgroups", KindScope.NAMESPACED, (), _STATUS, _COUNTED),
    Kind("scheduling.k8s.io", _ONE, "PriorityClass", "priorityclasses", _CLUSTER, ("pc",), (), _COUNTED),
    Kind("storage.k8s.io", _ONE, "CSIDriver", "csidrivers", _CLUSTER),
    Kind("storage.k8s.io", _ONE, "CSINode", "csinodes", _CLUSTER),
    Kind("storage.k8s.io", _ONE, "CSIStorageCapacity", "csistoragecapacities"),
    Kind("storage.k8s.io", _ONE, "StorageClass", "storageclasses", _CLUSTER, ("sc",)),
    Kind("storage.k8s.io", _ONE, "VolumeAttachment", "volumeattachments", _CLUSTER, (), _STATUS),
)


# OpenAPI schemas of the built-in kinds, for ``kubectl explain`` and strict field validation.
#
# ``deploy/tools/schemas.py`` generates the data file. ``shapes`` checks the types of fields that this server reads.

SCHEMAS: Final = Path(str(files("koord_numa.sandbox"))) / "data" / "schemas.json"

REFERENCE: Final = "#/components/schemas/"
"""Prefix of references in a document of OpenAPI 3."""


@lru_cache(maxsize=1)
def _data() -> Mapping[str, Any]:
    found: Mapping[str, Any] = orjson.loads(SCHEMAS.read_bytes())
    return found


def schema_name(group: str, version: str, kind: str) -> str:
    """Return the name of the schema of a built-in kind, or an empty text for a kind without a schema."""
    return str(_data()["kinds"].get(f"{group}/{version}/{kind}", ""))


def schema(name: str) -> JsonObject:
    """Return a schema by its name. Callers do not change it."""
    found: JsonObject = _data()["schemas"][name]
    return found


def with_references(names: Iterable[str]) -> dict[str, JsonObject]:
    """Return the schemas of these names and of all types that they contain."""
    found: dict[str, JsonObject] = {}
    wanted = list(names)
    while wanted:
        if (name := wanted.pop()) not in found:
            found[name] = schema(name)
            wanted.extend(references(found[name]))
    return found


def references(value: Any) -> Iterator[str]:
    """Yield the names of the schemas that a schema refers to."""
    if isinstance(value, dict):
        if isinstance(named := value.get("$ref"), str):
            yield named.removeprefix(REFERENCE)
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def unknown_fields(group: str, version: str, kind: str, document: Any) -> Iterator[str]:
    """Yield the paths of fields that a built-in kind does not have, such as ``spec.nodeSelectr``.

    Empty for kinds without a schema.
    """
    if name := schema_name(group, version, kind):
        yield from _unknown(schema(name), document, "")


def _unknown(described: JsonObject, value: Any, path: str) -> Iterator[str]:
    for part in described.get("allOf") or (described,):
        if "$ref" in part:
            described = schema(part["$ref"].removeprefix(REFERENCE))
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(described.get("items") or {}, item, f"{path}[{index}]")
    elif isinstance(value, dict) and ("properties" in described or "additionalProperties" in described):
        fields, others = described.get("properties") or {}, described.get("additionalProperties")
        for key, item in value.items():
            below = f"{path}.{key}" if path else key
            if key in fields or others is not None:
                yield from _unknown(fields.get(key) or others or {}, item, below)
            else:
                yield below
