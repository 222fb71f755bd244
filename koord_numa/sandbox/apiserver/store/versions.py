"""One stored object, several API versions: the same document under another apiVersion, and the two shapes of an Event."""

from collections.abc import Mapping
from typing import Final

from koord_numa.sandbox.apiserver.objects.documents import JsonObject

_CORE_EVENTS: Final = "v1"
_NEW_EVENTS: Final = "events.k8s.io/v1"

# core/v1 name → events.k8s.io/v1 name, as k8s.io/kubernetes pkg/apis/events/v1/conversion.go pairs them.
_EVENT_NAMES: Final[Mapping[str, str]] = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_EVENT_NAMES_BACK: Final[Mapping[str, str]] = {new: core for core, new in _EVENT_NAMES.items()}


def convert(document: JsonObject, api_version: str) -> JsonObject:
    """The document in another version of its kind; only Events change their shape, everything else only its apiVersion."""
    if document.get("apiVersion") == api_version:
        return document
    names: Mapping[str, str] = {}
    if document.get("kind") == "Event":
        if api_version == _NEW_EVENTS:
            names = _EVENT_NAMES
        elif api_version == _CORE_EVENTS:
            names = _EVENT_NAMES_BACK
    converted = {names.get(name, name): value for name, value in document.items()}
    converted["apiVersion"] = api_version
    return converted
