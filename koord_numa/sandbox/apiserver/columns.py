"""The columns that ``kubectl get`` prints: a table for built-in kinds, the definition for custom kinds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from koord_numa.sandbox.apiserver.documents import JsonObject, dig
from koord_numa.sandbox.apiserver.kinds import Kind
from koord_numa.wire.raw_json import find

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY


def age(moment: Any) -> str:
    """Return the time since an API timestamp: ``5s``, ``3m20s``, ``2d``; ``<unknown>`` for an invalid timestamp."""
    try:
        since = datetime.fromisoformat(str(moment))
    except ValueError:
        return "<unknown>"
    if since.tzinfo is None:
        return "<unknown>"
    return human_duration(int((datetime.now(UTC) - since).total_seconds()))


def human_duration(seconds: int) -> str:
    """Format a duration with at most two units, like ``duration.HumanDuration`` of k8s.io/apimachinery."""
    if seconds < 0:
        return "0s"
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    if seconds < 10 * _MINUTE:
        return _two(seconds, _MINUTE, "m", 1, "s")
    if seconds < 3 * _HOUR:
        return f"{seconds // _MINUTE}m"
    if seconds < 8 * _HOUR:
        return _two(seconds, _HOUR, "h", _MINUTE, "m")
    if seconds < 2 * _DAY:
        return f"{seconds // _HOUR}h"
    if seconds < 8 * _DAY:
        return _two(seconds, _DAY, "d", _HOUR, "h")
    if seconds < 2 * _YEAR:
        return f"{seconds // _DAY}d"
    return _two(seconds, _YEAR, "y", _DAY, "d") if seconds < 8 * _YEAR else f"{seconds // _YEAR}y"


def _two(seconds: int, large: int, large_unit: str, small: int, small_unit: str) -> str:
    first, rest = divmod(seconds, large)
    second = rest // small
    return f"{first}{large_unit}{second}{small_unit}" if second else f"{first}{large_unit}"


_NONE: Final = "<none>"
_WIDE: Final = 1  # priority of columns that only -o wide prints


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name and the cell value of an object."""

    name: str
    cell: Callable[[JsonObject], Any]
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0

    def definition(self) -> JsonObject:
        """Return the column definition in a Table."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


def columns_of(kind: Kind, printer_columns: Sequence[JsonObject] | None) -> tuple[Column, ...]:
    """Return the columns of a kind. ``printer_columns`` are the columns in a custom kind's definition."""
    if not kind.custom:
        return (_NAME, *_BUILTIN.get(kind.qualified, (_AGE,)))
    if not printer_columns:
        return (_NAME, _AGE)
    return (_NAME, *(_custom(column) for column in printer_columns))


def _custom(column: JsonObject) -> Column:
    return Column(
        column.get("name", ""),
        partial(_custom_cell, path=column.get("jsonPath", ""), kind=column.get("type", "string")),
        column.get("type", "string"),
        column.get("format", ""),
        column.get("description", ""),
        column.get("priority", 0),
    )


def _custom_cell(document: JsonObject, path: str, kind: str) -> Any:
    found = find(document, path)
    if not found:
        return None
    if kind == "date":
        return age(found[0])
    if kind == "string":
        return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in found)
    return found[0]


def _at(*path: str, absent: Any = _NONE) -> Callable[[JsonObject], Any]:
    def cell(document: JsonObject) -> Any:
        value = dig(document, *path)
        return absent if value in (None, "") else value

    return cell


def _count(*path: str) -> Callable[[JsonObject], int]:
    return lambda document: len(dig(document, *path) or ())


def _pod_ready(pod: JsonObject) -> str:
    statuses = dig(pod, "status", "containerStatuses") or ()
    return f"{sum(bool(one.get('ready')) for one in statuses)}/{len(dig(pod, 'spec', 'containers') or ())}"


def _pod_status(pod: JsonObject) -> str:
    if dig(pod, "metadata", "deletionTimestamp"):
        return "Terminating"
    gated = any(one.get("reason") == "SchedulingGated" for one in dig(pod, "status", "conditions") or ())
    return "SchedulingGated" if gated else str(dig(pod, "status", "reason") or dig(pod, "status", "phase") or "Unknown")


def _pod_restarts(pod: JsonObject) -> str:
    return str(sum(one.get("restartCount") or 0 for one in dig(pod, "status", "containerStatuses") or ()))


def _node_status(node: JsonObject) -> str:
    ready = next(
        (one.get("status") for one in dig(node, "status", "conditions") or () if one.get("type") == "Ready"), ""
    )
    words = ["Ready" if ready == "True" else "NotReady" if ready else "Unknown"]
    if dig(node, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(node: JsonObject) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key.removeprefix(prefix) for key in dig(node, "metadata", "labels") or () if key.startswith(prefix))
    return ",".join(roles) or _NONE


def _node_address(node: JsonObject, kind: str) -> str:
    return next(
        (one.get("address", _NONE) for one in dig(node, "status", "addresses") or () if one.get("type") == kind), _NONE
    )


def _event_object(event: JsonObject) -> str:
    about = event.get("involvedObject") or event.get("regarding") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _event_seen(event: JsonObject) -> str:
    last = (
        dig(event, "series", "lastObservedTime") or event.get("lastTimestamp") or event.get("deprecatedLastTimestamp")
    )
    return age(last or event.get("eventTime") or dig(event, "metadata", "creationTimestamp"))


def _event_source(event: JsonObject) -> str:
    source = event.get("source") or event.get("deprecatedSource") or {}
    return str(source.get("component") or event.get("reportingComponent") or event.get("reportingController") or "")


_NAME: Final = Column("Name", _at("metadata", "name", absent=""), format="name")
_AGE: Final = Column("Age", lambda document: age(dig(document, "metadata", "creationTimestamp")))

_EVENTS: Final = (
    Column("Last Seen", _event_seen),
    Column("Type", _at("type", absent="")),
    Column("Reason", _at("reason", absent="")),
    Column("Object", _event_object),
    Column("Source", _event_source, priority=_WIDE),
    Column("Message", lambda event: (event.get("message") or event.get("note") or "").strip()),
    Column("Count", lambda event: dig(event, "series", "count") or event.get("count") or 1, "integer", priority=_WIDE),
)
_BUILTIN: Final[Mapping[str, tuple[Column, ...]]] = {
    "pods": (
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _pod_restarts),
        _AGE,
        Column("IP", _at("status", "podIP"), priority=_WIDE),
        Column("Node", _at("spec", "nodeName"), priority=_WIDE),
        Column("Nominated Node", _at("status", "nominatedNodeName"), priority=_WIDE),
        Column("Readiness Gates", lambda _: _NONE, priority=_WIDE),
    ),
    "nodes": (
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        _AGE,
        Column("Version", _at("status", "nodeInfo", "kubeletVersion", absent="")),
        Column("Internal-IP", partial(_node_address, kind="InternalIP"), priority=_WIDE),
        Column("External-IP", partial(_node_address, kind="ExternalIP"), priority=_WIDE),
        Column("OS-Image", _at("status", "nodeInfo", "osImage", absent="<unknown>"), priority=_WIDE),
        Column("Kernel-Version", _at("status", "nodeInfo", "kernelVersion", absent="<unknown>"), priority=_WIDE),
        Column(
            "Container-Runtime",
            _at("status", "nodeInfo", "containerRuntimeVersion", absent="<unknown>"),
            priority=_WIDE,
        ),
    ),
    "events": _EVENTS,
    "events.events.k8s.io": _EVENTS,
    "namespaces": (Column("Status", _at("status", "phase", absent="")), _AGE),
    "leases.coordination.k8s.io": (Column("Holder", _at("spec", "holderIdentity", absent="")), _AGE),
    "configmaps": (Column("Data", _count("data"), "integer"), _AGE),
    "secrets": (Column("Type", _at("type", absent="")), Column("Data", _count("data"), "integer"), _AGE),
    "services": (
        Column("Type", _at("spec", "type", absent="ClusterIP")),
        Column("Cluster-IP", _at("spec", "clusterIP")),
        _AGE,
    ),
    "poddisruptionbudgets.policy": (
        Column("Min Available", _at("spec", "minAvailable", absent="N/A")),
        Column("Max Unavailable", _at("spec", "maxUnavailable", absent="N/A")),
        Column("Allowed Disruptions", _at("status", "disruptionsAllowed", absent=0), "integer"),
        _AGE,
    ),
    "priorityclasses.scheduling.k8s.io": (
        Column("Value", _at("value", absent=0), "integer"),
        Column("Global-Default", lambda priority: bool(priority.get("globalDefault")), "boolean"),
        _AGE,
        Column("PreemptionPolicy", _at("preemptionPolicy")),
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (
        Column("Created At", _at("metadata", "creationTimestamp", absent="")),
    ),
}
