"""JSON types of the fields of built-in kinds that this server reads. Malformed objects are rejected as undecodable.

Only types are checked here. ``rules`` and ``pod_rules`` validate values, ``schemas`` knows the names of all fields.
Fields that are not listed may hold any value.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from koord_numa.core.resources import parse_quantity
from koord_numa.sandbox.apiserver.objects.crds import validate
from koord_numa.sandbox.apiserver.objects.documents import JsonObject

QUANTITY_RULE: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"

_TEXT: Final[JsonObject] = {"type": "string"}
_TIME: Final[JsonObject] = {"type": "string", "format": "date-time"}
_COUNT: Final[JsonObject] = {"type": "integer"}
_FLAG: Final[JsonObject] = {"type": "boolean"}
_ANYTHING: Final[JsonObject] = {"type": "object"}
_TEXTS: Final[JsonObject] = {"type": "object", "additionalProperties": _TEXT}
_INT_OR_TEXT: Final[JsonObject] = {"x-kubernetes-int-or-string": True}


def _object(**fields: JsonObject) -> JsonObject:
    return {"type": "object", "properties": fields}


def _list(items: JsonObject) -> JsonObject:
    return {"type": "array", "items": items}


_SELECTOR: Final = _object(
    matchLabels=_TEXTS, matchExpressions=_list(_object(key=_TEXT, operator=_TEXT, values=_list(_TEXT)))
)
_CONDITIONS: Final = _list(_object(type=_TEXT, status=_TEXT, reason=_TEXT, message=_TEXT))
_CONTAINERS: Final = _list(
    _object(
        name=_TEXT,
        image=_TEXT,
        imagePullPolicy=_TEXT,
        resources=_object(requests=_ANYTHING, limits=_ANYTHING),
        ports=_list(_object(containerPort=_COUNT, hostPort=_COUNT, protocol=_TEXT)),
        env=_list(_ANYTHING),
    )
)
_POD: Final = _object(
    spec=_object(
        containers=_CONTAINERS,
        initContainers=_CONTAINERS,
        nodeName=_TEXT,
        schedulerName=_TEXT,
        restartPolicy=_TEXT,
        dnsPolicy=_TEXT,
        serviceAccountName=_TEXT,
        serviceAccount=_TEXT,
        priorityClassName=_TEXT,
        priority=_COUNT,
        terminationGracePeriodSeconds=_COUNT,
        hostNetwork=_FLAG,
        nodeSelector=_TEXTS,
        affinity=_ANYTHING,
        tolerations=_list(_object(key=_TEXT, operator=_TEXT, value=_TEXT, effect=_TEXT, tolerationSeconds=_COUNT)),
        schedulingGates=_list(_object(name=_TEXT)),
        volumes=_list(_object(name=_TEXT)),
    ),
    status=_object(
        phase=_TEXT,
        conditions=_CONDITIONS,
        containerStatuses=_list(_object(ready=_FLAG, restartCount=_COUNT)),
    ),
)
_NODE: Final = _object(
    spec=_object(taints=_list(_object(key=_TEXT, value=_TEXT, effect=_TEXT)), unschedulable=_FLAG),
    status=_object(
        capacity=_ANYTHING,
        allocatable=_ANYTHING,
        conditions=_CONDITIONS,
        addresses=_list(_object(type=_TEXT, address=_TEXT)),
        nodeInfo=_TEXTS,
    ),
)
_EVENT: Final = _object(
    involvedObject=_TEXTS,
    related=_TEXTS,
    source=_TEXTS,
    reason=_TEXT,
    message=_TEXT,
    type=_TEXT,
    action=_TEXT,
    eventTime=_TIME,
    reportingComponent=_TEXT,
    reportingInstance=_TEXT,
    count=_COUNT,
    series=_object(count=_COUNT, lastObservedTime=_TIME),
)
_LEASE: Final = _object(
    spec=_object(
        holderIdentity=_TEXT, leaseDurationSeconds=_COUNT, leaseTransitions=_COUNT, renewTime=_TIME, acquireTime=_TIME
    )
)
_BUDGET: Final = _object(
    spec=_object(
        selector=_SELECTOR, minAvailable=_INT_OR_TEXT, maxUnavailable=_INT_OR_TEXT, unhealthyPodEvictionPolicy=_TEXT
    ),
    status=_object(disruptionsAllowed=_COUNT, currentHealthy=_COUNT, desiredHealthy=_COUNT, disruptedPods=_TEXTS),
)
_NAMES: Final = _object(
    plural=_TEXT, singular=_TEXT, kind=_TEXT, listKind=_TEXT, shortNames=_list(_TEXT), categories=_list(_TEXT)
)
_VERSION: Final = _object(
    name=_TEXT,
    served=_FLAG,
    storage=_FLAG,
    schema=_object(openAPIV3Schema=_ANYTHING),
    subresources=_ANYTHING,
    selectableFields=_list(_object(jsonPath=_TEXT)),
    additionalPrinterColumns=_list(
        _object(name=_TEXT, type=_TEXT, jsonPath=_TEXT, description=_TEXT, format=_TEXT, priority=_COUNT)
    ),
)
_DEFINITION: Final = _object(
    spec=_object(group=_TEXT, scope=_TEXT, names=_NAMES, versions=_list(_VERSION)),
    status=_object(storedVersions=_list(_TEXT), conditions=_CONDITIONS),
)
_SHAPES: Final[Mapping[str, JsonObject]] = {
    "pods": _POD,
    "nodes": _NODE,
    "namespaces": _object(spec=_object(finalizers=_list(_TEXT)), status=_object(phase=_TEXT)),
    "events": _EVENT,
    "events.events.k8s.io": _EVENT,
    "configmaps": _object(data=_TEXTS, binaryData=_TEXTS, immutable=_FLAG),
    "secrets": _object(data=_TEXTS, stringData=_TEXTS, immutable=_FLAG, type=_TEXT),
    "leases.coordination.k8s.io": _LEASE,
    "poddisruptionbudgets.policy": _BUDGET,
    "priorityclasses.scheduling.k8s.io": _object(value=_COUNT, globalDefault=_FLAG, preemptionPolicy=_TEXT),
    "customresourcedefinitions.apiextensions.k8s.io": _DEFINITION,
}
_OTHER: Final = _object(spec=_ANYTHING, status=_ANYTHING)


def shape_problem(qualified: str, document: JsonObject) -> str:
    """Return why an object of a built-in kind cannot be decoded, or ""."""
    cause = next(validate(document, _SHAPES.get(qualified, _OTHER)), None)
    if cause is not None:
        return f"{cause.field}: {cause.message}"
    for path, amounts in _amounts(qualified, document):
        for name, amount in amounts.items():
            try:
                parse_quantity(amount)
            except ValueError:
                return f"{path}.{name}: {QUANTITY_RULE}"
    return ""


def _amounts(qualified: str, document: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield every map of quantities in a pod or node with its path."""
    if qualified == "nodes":
        status = document.get("status") or {}
        for part in ("capacity", "allocatable"):
            yield f"status.{part}", status.get(part) or {}
    elif qualified == "pods":
        spec = document.get("spec") or {}
        for name in ("containers", "initContainers"):
            for index, container in enumerate(spec.get(name) or ()):
                resources = container.get("resources") or {}
                for part in ("requests", "limits"):
                    yield f"spec.{name}[{index}].resources.{part}", resources.get(part) or {}


def without_nulls(value: Any) -> Any:
    """Return the value without null fields, like decoding into the API's types and encoding again."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
