"""What the API server adds to a new pod: defaults, the quality-of-service class and its first status. It refuses nothing."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final

from koord_numa.core.quantity import parse_quantity
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, section

CONTAINER_LISTS: Final = ("containers", "initContainers")

_SPEC_DEFAULTS: Final = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
    "enableServiceLinks": True,
    "serviceAccountName": "default",
    "serviceAccount": "default",
}
_CONTAINER_DEFAULTS: Final = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_TOLERATED: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATED_SECONDS: Final = 300  # plugin/pkg/admission/defaulttolerationseconds


def containers_of(spec: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """All containers of a pod, init containers last, each with its field path."""
    for name in CONTAINER_LISTS:
        for index, container in enumerate(spec.get(name) or ()):
            yield f"spec.{name}[{index}]", container


def default_pod(pod: JsonObject) -> None:
    """Fill in what the author left out, as k8s.io/kubernetes pkg/apis/core/v1/defaults.go and the default admission plug-ins do."""
    spec = section(pod, "spec")
    if spec.get("serviceAccount") and not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    for name, value in _SPEC_DEFAULTS.items():
        if spec.get(name) in (None, ""):
            spec[name] = value
    if spec.get("securityContext") is None:
        spec["securityContext"] = {}
    for _, container in containers_of(spec):
        _default_container(container, host_network=bool(spec.get("hostNetwork")))
    tolerations = [toleration for toleration in spec.get("tolerations") or () if isinstance(toleration, dict)]
    for key in _TOLERATED:
        if not any(_tolerates_eviction(toleration, key) for toleration in tolerations):
            added = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_SECONDS}
            spec["tolerations"] = [*(spec.get("tolerations") or ()), added]


def _tolerates_eviction(toleration: JsonObject, key: str) -> bool:
    return toleration.get("key") in (key, None, "") and toleration.get("effect") in ("NoExecute", None, "")


def _default_container(container: JsonObject, *, host_network: bool) -> None:
    for name, value in _CONTAINER_DEFAULTS.items():
        container.setdefault(name, value)
    if "imagePullPolicy" not in container:
        _, _, tag = str(container.get("image", "")).rpartition("/")[2].partition(":")
        container["imagePullPolicy"] = "Always" if tag in ("", "latest") else "IfNotPresent"
    resources = section(container, "resources")
    limits = resources.get("limits") or {}
    if limits:
        resources["requests"] = {**limits, **(resources.get("requests") or {})}
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network:
            port.setdefault("hostPort", port.get("containerPort"))


def begin_pod(pod: JsonObject) -> None:
    """Replace whatever status the author wrote by that of a new pod."""
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(pod["spec"])}
    gates = pod["spec"].get("schedulingGates")
    if gates:
        condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
        condition["message"] = "Scheduling is blocked due to non-empty scheduling gates"
        pod["status"]["conditions"] = [condition]


def qos_class(spec: JsonObject) -> str:
    """Guaranteed, Burstable or BestEffort by CPU and memory, as pkg/apis/core/helper/qos/qos.go. Quantities must be valid."""
    containers = [container for _, container in containers_of(spec)]
    requests = [_compute_resources(container, "requests") for container in containers]
    limits = [_compute_resources(container, "limits") for container in containers]
    if not any(requests) and not any(limits):
        return "BestEffort"
    guaranteed = all(len(limit) == 2 and limit == request for limit, request in zip(limits, requests, strict=True))
    return "Guaranteed" if guaranteed else "Burstable"


def _compute_resources(container: JsonObject, section_name: str) -> dict[str, Fraction]:
    amounts: Any = (container.get("resources") or {}).get(section_name) or {}
    parsed = {name: parse_quantity(amounts[name]) for name in ("cpu", "memory") if name in amounts}
    return {name: amount for name, amount in parsed.items() if amount > 0}
