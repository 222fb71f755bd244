"""What the default admission plug-ins decide with a look at other objects: a pod's priority."""

from koord_numa.sandbox.apiserver.errors import forbidden
from koord_numa.sandbox.apiserver.objects.documents import JsonObject
from koord_numa.sandbox.apiserver.objects.kinds import Kind
from koord_numa.sandbox.apiserver.store.backend import Backend

_PRIORITIES = "priorityclasses.scheduling.k8s.io"


def admit(backend: Backend, kind: Kind, document: JsonObject) -> None:
    """Complete a new object, or raise 403, as plugin/pkg/admission/priority does."""
    if kind.qualified != "pods":
        return
    spec = document["spec"]
    name = spec.get("priorityClassName") or ""
    chosen = _class_named(backend, name) if name else _default_class(backend)
    if name and chosen is None:
        raise forbidden(kind, document["metadata"].get("name") or "", f"no PriorityClass with name {name} was found")
    value = chosen["value"] if chosen else 0
    if spec.get("priority") not in (None, value):
        why = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
        why += f"priority admission controller computed {value} from the given PriorityClass name"
        raise forbidden(kind, document["metadata"].get("name") or "", why)
    spec["priority"] = value
    if chosen:
        spec["priorityClassName"] = chosen["metadata"]["name"]
    spec.setdefault("preemptionPolicy", chosen["preemptionPolicy"] if chosen else "PreemptLowerPriority")


def _class_named(backend: Backend, name: str) -> JsonObject | None:
    record = backend.lookup(_PRIORITIES, name)
    return record.load() if record else None


def _default_class(backend: Backend) -> JsonObject | None:
    """Of several global defaults the one with the smallest value, as the plug-in chooses."""
    classes = [record.load() for record in backend.storage.table(_PRIORITIES)]
    return min((one for one in classes if one.get("globalDefault")), key=lambda one: int(one["value"]), default=None)
