"""Object metadata, RFC 3339 times and messages of bounded length."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Protocol

from koord_numa.core.value_objects import ValueObject
from koord_numa.wire.errors import FieldPath, quoted
from koord_numa.wire.parsing import Int64, Problems, Strict, plain, read, read_time


def rfc3339(moment: datetime) -> str:
    """A ``metav1.Time``: UTC, whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """A ``metav1.MicroTime``: UTC, microseconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shortened(text: str, limit: int) -> str:
    """The text, or as much of its beginning as fits into ``limit`` bytes of UTF-8 together with an ellipsis."""
    raw = text.encode()
    # Cut on bytes, and a character that was cut in half is dropped.
    return text if len(raw) <= limit else raw[: limit - 3].decode("utf-8", "ignore") + "..."


class Owner(Strict):
    """One owner reference."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(Strict):
    """The fields of ``metadata`` that some parser of this package reads."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    resource_version: str | None = None
    generation: Int64 | None = None
    owner_references: list[Owner] | None = None

    @property
    def controller(self) -> str:
        """The uid of the controlling owner, or nothing."""
        return controller_uid(self.owner_references or ())

    @property
    def has_coined_name(self) -> bool:
        """Did a controller leave the name of this pod to the API server, which ends it with five random characters?"""
        return has_coined_name(self.owner_references or ())


class OwnerReference(Protocol):
    """An owner reference, however it was read."""

    api_version: str
    kind: str
    uid: str
    controller: bool | None


def controller_uid(owners: Iterable[OwnerReference]) -> str:
    """The uid of the controlling owner, or nothing."""
    return next((owner.uid for owner in owners if owner.controller), "")


def has_coined_name(owners: Iterable[OwnerReference]) -> bool:
    """Is one of them a controller that leaves the names of its pods to the API server?"""
    return any(owner.controller and (owner.api_version, owner.kind) in _COINING for owner in owners)


class Head(ValueObject):
    """An object's identity and metadata, and the path that errors about it are reported under."""

    path: FieldPath
    name: str
    namespace: str
    uid: str
    labels: dict[str, str]
    annotations: dict[str, str]
    metadata: Metadata
    created: float
    body: dict[str, Any]  # the whole object


def head(obj: object, kind: str, problems: Problems, known: Metadata | None = None) -> Head:
    """
    An object's identity and metadata; messages about malformed metadata go to ``problems``. ``known`` is the metadata, where it was read
    already.

    Raises ``WireError`` when the object has no name: then nothing can be said about it at all.
    """
    body = plain(obj, FieldPath(kind))
    raw = plain(body.get("metadata"), FieldPath(kind).at("metadata"))
    # Read without the model, since the name is what every later message needs.
    name, namespace, uid = raw.get("name"), raw.get("namespace") or "", raw.get("uid") or ""
    if not isinstance(name, str) or not name:
        raise FieldPath(kind).at("metadata.name").error(f"{quoted(name)} is not a name")
    if not isinstance(namespace, str) or not isinstance(uid, str):
        wrong = namespace if isinstance(uid, str) else uid
        raise FieldPath.of(kind, name).at("metadata").error(f"{quoted(wrong)} is neither a namespace nor a uid")
    path = FieldPath.of(kind, f"{namespace}/{name}" if namespace else name)
    # Malformed metadata leaves the identity intact: the object can still be named, and its problem told.
    metadata = known or problems.collect(lambda: read(Metadata, raw, path, "metadata"), _BLANK)
    stamp = metadata.creation_timestamp
    created = problems.collect(lambda: read_time(stamp, path, "metadata.creationTimestamp"), 0.0) if stamp else 0.0
    return Head(
        path=path,
        name=name,
        namespace=namespace,
        uid=uid,
        labels=metadata.labels or {},
        annotations=metadata.annotations or {},
        metadata=metadata,
        created=created,
        body=body,
    )


def version(top: Head) -> str:
    """The resource version, or nothing."""
    return top.metadata.resource_version or ""


_BLANK: Final = Metadata()

_COINING: Final = {
    ("v1", "ReplicationController"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "DaemonSet"),
    ("batch/v1", "Job"),
}
"""Controllers that give their pods a ``generateName`` and never a name (``GetPodFromTemplate`` in pkg/controller/controller_utils.go)."""
