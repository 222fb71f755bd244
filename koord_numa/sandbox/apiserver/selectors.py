"""The syntax of names and labels, and label and field selectors with all operators of the Kubernetes API."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from koord_numa.sandbox.apiserver.documents import JsonObject
from koord_numa.sandbox.apiserver.errors import Cause, bad_request, invalid_value, required
from koord_numa.sandbox.apiserver.kinds import Kind
from koord_numa.sandbox.apiserver.storage import ADDED, DELETED, MODIFIED, Record, TableChange

# The syntax of names, label keys, label values and annotation keys.
#
# Every check returns a message, or "" for valid input.

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


class SelectorOperator(Enum):
    """The comparison of a requirement."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    ABSENT = "!"
    GREATER = "gt"
    LESS = "lt"


@dataclass(frozen=True, slots=True)
class SelectorRequirement:
    """A condition on a label or field."""

    key: str
    operator: SelectorOperator
    values: tuple[str, ...] = ()

    def holds(self, values: Mapping[str, str]) -> bool:
        """Report whether the labels or fields satisfy the requirement. ``notin`` also matches an absent key."""
        return _HOLDS[self.operator](values.get(self.key), self.values)


def _compares(found: str | None, bound: str, sign: int) -> bool:
    try:
        return found is not None and (int(found) - int(bound)) * sign > 0
    except ValueError:
        return False


_HOLDS: Final[Mapping[SelectorOperator, Callable[[str | None, tuple[str, ...]], bool]]] = {
    SelectorOperator.IN: lambda found, values: found in values,
    SelectorOperator.NOT_IN: lambda found, values: found not in values,
    SelectorOperator.EXISTS: lambda found, _: found is not None,
    SelectorOperator.ABSENT: lambda found, _: found is None,
    SelectorOperator.GREATER: lambda found, values: _compares(found, values[0], 1),
    SelectorOperator.LESS: lambda found, values: _compares(found, values[0], -1),
}


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects of a kind that a list or watch selects."""

    namespace: str = ""
    labels: tuple[SelectorRequirement, ...] = ()
    fields: tuple[SelectorRequirement, ...] = ()

    @property
    def everything(self) -> bool:
        """True if all objects are selected."""
        return not (self.namespace or self.labels or self.fields)

    def matches(self, record: Record) -> bool:
        """Report whether the object is selected."""
        if self.namespace and record.key.namespace != self.namespace:
            return False
        fields, labels = record.fields, record.labels
        return all(one.holds(fields) for one in self.fields) and all(one.holds(labels) for one in self.labels)

    def event_of(self, change: TableChange) -> str | None:
        """Return the watch event type that a change has for this selection, or ``None``."""
        if self.everything:
            return change.kind
        before = change.previous is not None and self.matches(change.previous)
        after = change.kind != DELETED and self.matches(change.record)
        if after:
            return MODIFIED if before else ADDED
        return DELETED if before else None


_TOKEN: Final = re.compile(r"\s*(==|!=|=|!|<|>|\(|\)|,|[^\s=!<>(),]+)")


def parse_labels(text: str) -> tuple[SelectorRequirement, ...]:
    """Return the requirements of a label selector: ``a=b,c!=d,e in (f,g),h notin (i),j,!k,l>5``.

    Raises ``ApiError`` with code 400 for a selector that cannot be parsed.
    """
    tokens: list[str] = []
    position = 0
    stripped = text.rstrip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise _unparsable(text)
        tokens.append(match.group(1))
        position = match.end()
    found: list[SelectorRequirement] = []
    while tokens:
        found.append(_take_requirement(tokens, text))
        if tokens and (tokens.pop(0) != "," or not tokens):
            raise _unparsable(text)
    return tuple(found)


def _take_requirement(tokens: list[str], text: str) -> SelectorRequirement:
    if tokens[0] == "!":
        tokens.pop(0)
        return SelectorRequirement(_key(_take(tokens, text), text), SelectorOperator.ABSENT)
    key = _key(_take(tokens, text), text)
    if not tokens or tokens[0] == ",":
        return SelectorRequirement(key, SelectorOperator.EXISTS)
    word = tokens.pop(0)
    if word in ("in", "notin"):
        return SelectorRequirement(key, SelectorOperator(word), _take_set(tokens, text))
    operator = _SIGNS.get(word)
    if operator is None:
        raise _unparsable(text)
    value = tokens.pop(0) if tokens and tokens[0] != "," else ""
    problem = label_value_problem(value)
    if problem:
        raise bad_request(f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}": {problem}')
    return SelectorRequirement(key, operator, (value,))


_SIGNS: Final = {
    "=": SelectorOperator.IN,
    "==": SelectorOperator.IN,
    "!=": SelectorOperator.NOT_IN,
    ">": SelectorOperator.GREATER,
    "<": SelectorOperator.LESS,
}


def _take(tokens: list[str], text: str) -> str:
    if not tokens:
        raise _unparsable(text)
    return tokens.pop(0)


def _take_set(tokens: list[str], text: str) -> tuple[str, ...]:
    if _take(tokens, text) != "(":
        raise _unparsable(text)
    values: list[str] = []
    while (word := _take(tokens, text)) != ")":
        if word != ",":
            values.append(word)
    return tuple(values) or ("",)


def _key(key: str, text: str) -> str:
    problem = label_key_problem(key)
    if problem:
        raise bad_request(f'unable to parse requirement: <nil>: Invalid value: "{key}": {problem} (in "{text}")')
    return key


def _unparsable(text: str) -> Exception:
    return bad_request(f'unable to parse requirement: found an unexpected token in "{text}"')


_TERM: Final = re.compile(r"(?:[^,\\]|\\.)+")
_COMPARISON: Final = re.compile(r"([^=!]+)(!=|==|=)(.*)", re.DOTALL)


def parse_fields(text: str, kind: Kind, labels: str = "") -> tuple[SelectorRequirement, ...]:
    """Return the requirements of a field selector: ``spec.nodeName=,status.phase!=Failed``.

    Raises ``ApiError`` with code 400 for a selector that cannot be parsed or has unknown fields.
    """
    known = kind.fields
    found: list[SelectorRequirement] = []
    for term in _TERM.findall(text):
        match = _COMPARISON.fullmatch(term)
        if match is None:
            raise bad_request(f"invalid field selector: {text}; can't understand '{term}'")
        field, sign, value = match.groups()
        if field not in known:
            resource = f"{kind.api_version(kind.versions[0])}, Resource={kind.plural}"
            raise bad_request(
                f'Unable to find "{resource}" that match label selector "{labels}", field selector "{text}": '
                f'"{field}" is not a known field selector: only {", ".join(sorted(known))}: field label not supported: {field}'
            )
        operator = SelectorOperator.NOT_IN if sign == "!=" else SelectorOperator.IN
        found.append(SelectorRequirement(field, operator, (re.sub(r"\\(.)", r"\1", value),)))
    return tuple(found)


def from_label_selector(selector: Any) -> tuple[SelectorRequirement, ...]:
    """Return the requirements of a LabelSelector object (``matchLabels`` and ``matchExpressions``)."""
    selector = selector if isinstance(selector, dict) else {}
    found = [
        SelectorRequirement(key, SelectorOperator.IN, (value,))
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    for expression in selector.get("matchExpressions") or ():
        operator = _EXPRESSION_OPERATORS.get(expression.get("operator", ""))
        if operator is not None:
            found.append(
                SelectorRequirement(expression.get("key", ""), operator, tuple(expression.get("values") or ()))
            )
    return tuple(found)


_EXPRESSION_OPERATORS: Final = {
    "In": SelectorOperator.IN,
    "NotIn": SelectorOperator.NOT_IN,
    "Exists": SelectorOperator.EXISTS,
    "DoesNotExist": SelectorOperator.ABSENT,
}
