"""Request bodies in the Kubernetes protobuf encoding.

Go clients send them for ``kubectl create``, ``drain`` and ``auth can-i``. Only the kinds of these commands are
supported, with the fields of the ``generated.proto`` files of k8s.io/api. Other content is rejected, so no field of a
request is lost silently. Responses are always JSON, which every client accepts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from koord_numa.sandbox.apiserver.documents import JsonObject

CONTENT_TYPE: Final = "application/vnd.kubernetes.protobuf"

_MAGIC: Final = b"k8s\x00"
_VARINT: Final = 0
_BYTES: Final = 2


class _Type(Enum):
    """The decoding of a field."""

    TEXT = "text"
    NUMBER = "number"
    FLAG = "flag"
    TEXT_LIST = "list"
    TEXT_MAP = "map"
    IGNORED = "ignored"  # written only by the server


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: _Type = _Type.TEXT
    message: "Mapping[int, _Field] | None" = None
    repeated: bool = False  # a list of messages


def _texts(*names: str) -> dict[int, _Field]:
    return {number: _Field(name) for number, name in enumerate(names, start=1)}


_METADATA: Final = {
    **_texts("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion"),
    7: _Field("generation", _Type.IGNORED),
    8: _Field("creationTimestamp", _Type.IGNORED),
    11: _Field("labels", _Type.TEXT_MAP),
    12: _Field("annotations", _Type.TEXT_MAP),
    14: _Field("finalizers", _Type.TEXT_LIST),
    17: _Field("managedFields", _Type.IGNORED),
}
_DELETE_OPTIONS: Final = {
    1: _Field("gracePeriodSeconds", _Type.NUMBER),
    2: _Field("preconditions", message=_texts("uid", "resourceVersion")),
    3: _Field("orphanDependents", _Type.FLAG),
    4: _Field("propagationPolicy"),
    5: _Field("dryRun", _Type.TEXT_LIST),
}
_RESOURCE: Final = _texts("namespace", "verb", "group", "version", "resource", "subresource", "name")
_META: Final = _Field("metadata", message=_METADATA)
_REVIEW: Final = {
    1: _META,
    2: _Field(
        "spec",
        message={
            1: _Field("resourceAttributes", message=_RESOURCE),
            2: _Field("nonResourceAttributes", message=_texts("path", "verb")),
        },
    ),
    3: _Field("status", _Type.IGNORED),
}
_PORTS: Final = {
    1: _Field("name"),
    2: _Field("hostPort", _Type.NUMBER),
    3: _Field("containerPort", _Type.NUMBER),
    4: _Field("protocol"),
    5: _Field("hostIP"),
}
_CONTAINER: Final = {
    **_texts("name", "image"),
    3: _Field("command", _Type.TEXT_LIST),
    4: _Field("args", _Type.TEXT_LIST),
    5: _Field("workingDir"),
    6: _Field("ports", message=_PORTS, repeated=True),
    8: _Field("resources", message={}),
    13: _Field("terminationMessagePath"),
    14: _Field("imagePullPolicy"),
    **{number: _Field(name, _Type.FLAG) for number, name in ((16, "stdin"), (17, "stdinOnce"), (18, "tty"))},
    20: _Field("terminationMessagePolicy"),
}
_TEMPLATE: Final = _Field(
    "template",
    message={
        1: _META,
        2: _Field(
            "spec",
            message={
                2: _Field("containers", message=_CONTAINER, repeated=True),
                3: _Field("restartPolicy"),
                6: _Field("dnsPolicy"),
                **{number: _Field(name) for number, name in ((8, "serviceAccountName"), (9, "serviceAccount"))},
                10: _Field("nodeName"),
                **{
                    number: _Field(name, _Type.FLAG)
                    for number, name in ((11, "hostNetwork"), (12, "hostPID"), (13, "hostIPC"))
                },
                **{
                    number: _Field(name)
                    for number, name in ((16, "hostname"), (17, "subdomain"), (19, "schedulerName"))
                },
                24: _Field("priorityClassName"),
            },
        ),
    },
)
"""The fields that ``kubectl create deployment`` and ``kubectl create job`` write."""

_BINDING: Final = {
    1: _META,
    2: _Field("subjects", message=_texts("kind", "apiGroup", "name", "namespace"), repeated=True),
    3: _Field("roleRef", message=_texts("apiGroup", "kind", "name")),
}
_ROLE: Final = {
    1: _META,
    2: _Field(
        "rules",
        message={
            number: _Field(name, _Type.TEXT_LIST)
            for number, name in enumerate(("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"), 1)
        },
        repeated=True,
    ),
}
_RBAC: Final = "rbac.authorization.k8s.io/v1"
_KINDS: Final[Mapping[tuple[str, str], Mapping[int, _Field]]] = {
    ("v1", "Namespace"): {
        1: _META,
        2: _Field("spec", message={1: _Field("finalizers", _Type.TEXT_LIST)}),
        3: _Field("status", _Type.IGNORED),
    },
    ("v1", "ConfigMap"): {1: _META, 2: _Field("data", _Type.TEXT_MAP), 4: _Field("immutable", _Type.FLAG)},
    **{(_RBAC, kind): _BINDING for kind in ("ClusterRoleBinding", "RoleBinding")},
    **{(_RBAC, kind): _ROLE for kind in ("ClusterRole", "Role")},
    ("v1", "ServiceAccount"): {1: _META, 4: _Field("automountServiceAccountToken", _Type.FLAG)},
    ("apps/v1", "Deployment"): {
        1: _META,
        2: _Field(
            "spec",
            message={
                1: _Field("replicas", _Type.NUMBER),
                2: _Field("selector", message={1: _Field("matchLabels", _Type.TEXT_MAP)}),
                3: _TEMPLATE,
                4: _Field("strategy", message=_texts("type")),
                5: _Field("minReadySeconds", _Type.NUMBER),
                7: _Field("paused", _Type.FLAG),
            },
        ),
        3: _Field("status", _Type.IGNORED),
    },
    ("batch/v1", "Job"): {1: _META, 2: _Field("spec", message={6: _TEMPLATE}), 3: _Field("status", _Type.IGNORED)},
    ("policy/v1", "Eviction"): {1: _META, 2: _Field("deleteOptions", message=_DELETE_OPTIONS)},
    ("meta.k8s.io/v1", "DeleteOptions"): _DELETE_OPTIONS,
    ("v1", "DeleteOptions"): _DELETE_OPTIONS,
    ("policy/v1", "DeleteOptions"): _DELETE_OPTIONS,
    ("scheduling.k8s.io/v1", "PriorityClass"): {
        1: _META,
        2: _Field("value", _Type.NUMBER),
        3: _Field("globalDefault", _Type.FLAG),
        4: _Field("description"),
        5: _Field("preemptionPolicy"),
    },
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): _REVIEW,
    ("authentication.k8s.io/v1", "SelfSubjectReview"): {1: _META, 2: _Field("status", _Type.IGNORED)},
}
_ENVELOPE: Final = {1: _Field("type", message=_texts("apiVersion", "kind"))}


def parse_protobuf(body: bytes) -> JsonObject | None:
    """Return the object in a body, or ``None`` for an unsupported kind or field.

    Raises ``ValueError`` for bytes that are not a protobuf message.
    """
    if not body.startswith(_MAGIC):
        raise ValueError("the body does not begin as a Kubernetes protobuf message")
    raw = b""
    identity: JsonObject = {}
    for number, value in _fields(body[len(_MAGIC) :]):
        if number == 1 and isinstance(value, bytes):
            identity = _message(value, _ENVELOPE[1].message or {}) or {}
        elif number == 2 and isinstance(value, bytes):
            raw = value
    schema = _KINDS.get((identity.get("apiVersion", ""), identity.get("kind", "")))
    content = None if schema is None else _message(raw, schema)
    return None if content is None else {**identity, **content}


def _message(raw: bytes, schema: Mapping[int, _Field]) -> JsonObject | None:
    """Return the fields of a message by name, or ``None`` if a field is unknown."""
    found: JsonObject = {}
    for number, value in _fields(raw):
        field = schema.get(number)
        if field is None:
            return None
        if field.message is not None:
            inner = _message(_bytes(value), field.message)
            if inner is None:
                return None
            if field.repeated:
                found.setdefault(field.name, []).append(inner)
            elif inner:
                found[field.name] = inner
        elif field.type is not _Type.IGNORED:
            _set(found, field, value)
    return {name: value for name, value in found.items() if value != ""}


def _set(found: JsonObject, field: _Field, value: int | bytes) -> None:
    if field.type is _Type.TEXT_LIST:
        found.setdefault(field.name, []).append(_text(value))
    elif field.type is _Type.TEXT_MAP:
        entry = dict(_fields(_bytes(value)))
        found.setdefault(field.name, {})[_text(entry.get(1, b""))] = _text(entry.get(2, b""))
    elif field.type is _Type.TEXT:
        found[field.name] = _text(value)
    else:
        found[field.name] = _signed(value) if field.type is _Type.NUMBER else bool(value)


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the field numbers and values of a message in order."""
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        number, wire = tag >> 3, tag & 7
        value, position = _varint(raw, position)
        if wire == _VARINT:
            yield number, value
        elif wire == _BYTES and position + value <= len(raw):
            yield number, raw[position : position + value]
            position += value
        else:
            raise ValueError("the body is not a protobuf message: a field is cut off or of an unknown wire type")


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(raw):
            break
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
    raise ValueError("the body is not a protobuf message: a number is cut off or too long")


def _signed(value: Any) -> int:
    number = value if isinstance(value, int) else 0
    return number - (1 << 64) if number >= 1 << 63 else number


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("the body is not a protobuf message: found a number where a message or text belongs")  # noqa: TRY004  (malformed data)
    return value


def _text(value: int | bytes) -> str:
    return _bytes(value).decode()
