"""What a write may change: the proposed object reduced to the reach of its (sub)resource, and the part that has a generation."""

from typing import Final

from koord_numa.sandbox.apiserver.objects.documents import JsonObject, clone
from koord_numa.sandbox.apiserver.objects.kinds import Kind
from koord_numa.sandbox.apiserver.rules.pods import containers_of
from koord_numa.sandbox.apiserver.store.registry import Target

_SYSTEM_METADATA: Final = (
    "managedFields",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "generateName",
)


def settle(target: Target, old: JsonObject, proposed: JsonObject) -> JsonObject:
    """The proposed object reduced to what the (sub)resource may change."""
    if target.subresource == "status":
        settled = {**old, "status": proposed.get("status")}
        if settled["status"] is None:
            del settled["status"]
        settled["metadata"] = dict(old["metadata"])
        if not target.kind.custom:  # built-in kinds take labels and annotations along with a status
            for field in ("labels", "annotations"):
                _carry(proposed["metadata"], settled["metadata"], field)
        return settled
    if target.subresource == "resize":
        return _resized(old, proposed)
    settled = dict(proposed)
    settled["metadata"] = dict(proposed["metadata"])
    for field in (*_SYSTEM_METADATA, "name", "namespace", "resourceVersion"):
        _carry(old["metadata"], settled["metadata"], field)
    if target.kind.has_status:
        _carry(old, settled, "status")
    return settled


def _resized(old: JsonObject, proposed: JsonObject) -> JsonObject:
    """The old pod with the proposed containers' resources."""
    resized: JsonObject = clone(old)
    wanted = {
        container.get("name"): container.get("resources") for _, container in containers_of(proposed.get("spec") or {})
    }
    for _, container in containers_of(resized["spec"]):
        container["resources"] = wanted.get(container["name"]) or container["resources"]
    return resized


def _carry(source: JsonObject, to: JsonObject, field: str) -> None:
    if field in source:
        to[field] = source[field]
    else:
        to.pop(field, None)


def desired(kind: Kind, document: JsonObject) -> JsonObject:
    """The part of an object whose changes count as a new generation."""
    separate = ("metadata", "status") if kind.has_status else ("metadata",)
    return {name: value for name, value in document.items() if name not in separate}
