"""The syntax of names, label keys, label values and annotation keys.

Every check returns a message, or "" for valid input.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from koord_numa.sandbox.apiserver.documents import JsonObject
from koord_numa.sandbox.apiserver.errors import Cause, invalid_value, required
from koord_numa.sandbox.apiserver.kinds import Kind

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_QUALIFIED: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_MAX_ANNOTATIONS: Final = 256 * 1024  # bytes of all keys and values together (apimachinery, validation/objectmeta.go)

_LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character"
)
_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character"
)
_QUALIFIED_RULE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character"
)
_VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character"
)


def dns_label_problem(text: str) -> str:
    """Return why a text is not a DNS label (RFC 1123), or ""."""
    if len(text) > 63:
        return "must be no more than 63 characters"
    return "" if _LABEL.fullmatch(text) else _LABEL_RULE


def subdomain_problem(text: str) -> str:
    """Return why a text is not a DNS subdomain (RFC 1123), or ""."""
    if len(text) > 253:
        return "must be no more than 253 characters"
    return "" if _SUBDOMAIN.fullmatch(text) else _SUBDOMAIN_RULE


def label_key_problem(key: str) -> str:
    """Return why a text is not a label or annotation key, or "".

    A key is an optional DNS prefix, a slash, and a name.
    """
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or subdomain_problem(prefix)):
        return f"prefix part {subdomain_problem(prefix) if prefix else 'must be non-empty'}"
    if not name or len(name) > 63:
        return "name part must be non-empty" if not name else "name part must be no more than 63 characters"
    return "" if _QUALIFIED.fullmatch(name) else _QUALIFIED_RULE


def label_value_problem(value: str) -> str:
    """Return why a text is not a label value, or ""."""
    if len(value) > 63:
        return "must be no more than 63 characters"
    return "" if not value or _QUALIFIED.fullmatch(value) else _VALUE_RULE


def metadata_causes(kind: Kind, metadata: JsonObject) -> list[Cause]:
    """Return the errors in the name, labels, annotations, finalizers and owner references of an object."""
    causes = _name_causes(kind, metadata)
    for key, value in (metadata.get("labels") or {}).items():
        problem = label_key_problem(key)
        if problem:
            causes.append(invalid_value("metadata.labels", key, problem))
        problem = label_value_problem(value)
        if problem:
            causes.append(invalid_value("metadata.labels", value, problem))
    causes.extend(_annotation_causes(metadata.get("annotations") or {}))
    for index, finalizer in enumerate(metadata.get("finalizers") or ()):
        if label_key_problem(finalizer):
            causes.append(invalid_value(f"metadata.finalizers[{index}]", finalizer, label_key_problem(finalizer)))
    for index, owner in enumerate(metadata.get("ownerReferences") or ()):
        path = f"metadata.ownerReferences[{index}]"
        causes.extend(
            required(f"{path}.{name}") for name in ("apiVersion", "kind", "name", "uid") if not owner.get(name)
        )
    return causes


def _name_causes(kind: Kind, metadata: JsonObject) -> list[Cause]:
    name = metadata.get("name") or ""
    if not name:
        return [required("metadata.name", "name or generateName is required")]
    problem = ""
    if kind.group == "rbac.authorization.k8s.io":  # RBAC names are path segments, for example system:node
        problem = "may not contain '/' or '%'" if "/" in name or "%" in name else ""
    elif kind.qualified in ("namespaces", "services"):
        problem = dns_label_problem(name)
    else:
        problem = subdomain_problem(name)
    return [invalid_value("metadata.name", name, problem)] if problem else []


def _annotation_causes(annotations: Mapping[str, str]) -> list[Cause]:
    causes = []
    for key in annotations:
        problem = label_key_problem(key.lower())
        if problem:
            causes.append(invalid_value("metadata.annotations", key, problem))
    if sum(len(key) + len(value) for key, value in annotations.items()) > _MAX_ANNOTATIONS:
        causes.append(
            Cause(
                "metadata.annotations", f"Too long: may not be more than {_MAX_ANNOTATIONS} bytes", "FieldValueTooLong"
            )
        )
    return causes


def metadata_type_problem(metadata: Any) -> str:
    """Return why ``metadata`` cannot be decoded, or "": fields with a wrong JSON type.

    The message follows the API server's decoder.
    """
    if not isinstance(metadata, dict):
        return "metadata: expected an object"
    for name in ("name", "namespace", "generateName", "uid", "resourceVersion", "deletionTimestamp"):
        if not isinstance(metadata.get(name), str | None):
            return f"metadata.{name}: expected a string"
    for name in ("labels", "annotations"):
        values = metadata.get(name) or {}
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            return f"metadata.{name}: expected an object of strings"
    finalizers = metadata.get("finalizers") or []
    if not isinstance(finalizers, list) or not all(isinstance(one, str) for one in finalizers):
        return "metadata.finalizers: expected a list of strings"
    owners = metadata.get("ownerReferences") or []
    if not isinstance(owners, list) or not all(isinstance(owner, dict) and _names_owner(owner) for owner in owners):
        return "metadata.ownerReferences: expected a list of objects with texts"
    return ""


def _names_owner(owner: JsonObject) -> bool:
    return all(isinstance(owner.get(name), str | None) for name in ("apiVersion", "kind", "name", "uid"))
