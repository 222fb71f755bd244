"""Object metadata, RFC 3339 times and messages of bounded length."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Protocol

from koord_numa.core.value_objects import ValueObject
from koord_numa.wire.errors import FieldPath, quoted
from koord_numa.wire.parsing import Int64, Problems, Strict, plain, read, read_time


def rfc3339(moment: datetime) -> str:
    """Return a ``metav1.Time``: UTC, whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """Return a ``metav1.MicroTime``: UTC, microseconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shortened(text: str, limit: int) -> str:
    """Return the text, or its beginning with an ellipsis if it has more than ``limit`` bytes of UTF-8."""
    raw = text.encode()
    # Cut by bytes. A character that is cut in half is dropped.
    return text if len(raw) <= limit else raw[: limit - 3].decode("utf-8", "ignore") + "..."


class Owner(Strict):
    """An owner reference."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(Strict):
    """The fields of ``metadata`` that the parsers of this package read."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    resource_version: str | None = None
    generation: Int64 | None = None
    owner_references: list[Owner] | None = None

    @property
    def controller(self) -> str:
        """Return the UID of the controlling owner, empty without one."""
        return controller_uid(self.owner_references or ())

    @property
    def has_coined_name(self) -> bool:
        """Return whether the API server generated the name of this pod, with a suffix of five random characters."""
        return has_coined_name(self.owner_references or ())


class OwnerReference(Protocol):
    """An owner reference of any parser."""

    api_version: str
    kind: str
    uid: str
    controller: bool | None


def controller_uid(owners: Iterable[OwnerReference]) -> str:
    """Return the UID of the controlling owner, empty without one."""
    return next((owner.uid for owner in owners if owner.controller), "")


def has_coined_name(owners: Iterable[OwnerReference]) -> bool:
    """Return whether a controlling owner leaves the names of its pods to the API server."""
    return any(owner.controller and (owner.api_version, owner.kind) in _COINING for owner in owners)


class Head(ValueObject):
    """The identity and metadata of an object, with the path for errors about it."""

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
    Return the identity and metadata of an object.

    Messages about malformed metadata go to ``problems``. ``known`` is the metadata if it has been parsed already.

    Raises ``WireError`` if the object has no name, since it then cannot be identified.
    """
    body = plain(obj, FieldPath(kind))
    raw = plain(body.get("metadata"), FieldPath(kind).at("metadata"))
    # Read without the model: every later message needs the name.
    name, namespace, uid = raw.get("name"), raw.get("namespace") or "", raw.get("uid") or ""
    if not isinstance(name, str) or not name:
        raise FieldPath(kind).at("metadata.name").error(f"{quoted(name)} is not a name")
    if not isinstance(namespace, str) or not isinstance(uid, str):
        wrong = namespace if isinstance(uid, str) else uid
        raise FieldPath.of(kind, name).at("metadata").error(f"{quoted(wrong)} is neither a namespace nor a uid")
    path = FieldPath.of(kind, f"{namespace}/{name}" if namespace else name)
    # Malformed metadata keeps the identity, so that the problem can be reported by name.
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
    """Return the resource version, empty without one."""
    return top.metadata.resource_version or ""


_BLANK: Final = Metadata()

_COINING: Final = {
    ("v1", "ReplicationController"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "DaemonSet"),
    ("batch/v1", "Job"),
}
"""Controllers that set ``generateName`` and never a name (``GetPodFromTemplate`` in pkg/controller/controller_utils.go)."""
