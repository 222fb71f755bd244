"""The patch formats of the API: JSON merge patch, JSON patch, strategic merge patch, and server-side apply."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jsonpatch
import jsonpointer

from koord_numa.sandbox.apiserver.documents import JsonObject, clone
from koord_numa.sandbox.apiserver.errors import ApiError, bad_request

# Server-side apply: merging of an applied configuration and ownership of fields.
#
# An applied configuration is flattened into leaves, with paths of field names and list-item identities. A leaf that its
# manager no longer applies is removed unless another manager applies it. A leaf that another manager applies with a
# different value is a conflict, unless forced. Fields written by other verbs have no owner: the last write wins.

FieldNames = tuple[str, ...]  # path without list indexes: ("spec", "containers", "env")


@dataclass(frozen=True, slots=True)
class ListRule:
    """The merge rule of a list.

    ``keys`` are the fields that identify an item. A set has no keys and merges by value. An atomic list is replaced.
    """

    keys: FieldNames = ()
    is_set: bool = False

    def identity(self, item: Any) -> tuple[Any, ...] | None:
        """Return the key values that identify an item, or ``None`` when it lacks a key."""
        if not isinstance(item, dict):
            return None
        found = tuple(item.get(key, _KEY_DEFAULTS.get(key)) for key in self.keys)
        return None if None in found else found


_KEY_DEFAULTS: Final = {"protocol": "TCP"}
ATOMIC: Final = ListRule()
SET: Final = ListRule(is_set=True)

ListRules = Callable[[FieldNames], ListRule]


def _by(*keys: str) -> ListRule:
    return ListRule(keys)


# patchMergeKey tags of k8s.io/api. Lists that are absent here (tolerations, taints) are atomic.
_BUILTIN: Final[Mapping[str, ListRule]] = {
    "addresses": _by("type"),
    "conditions": _by("type"),
    "containers": _by("name"),
    "env": _by("name"),
    "ephemeralContainers": _by("name"),
    "finalizers": SET,
    "hostAliases": _by("ip"),
    "hostIPs": _by("ip"),
    "imagePullSecrets": _by("name"),
    "initContainers": _by("name"),
    "ownerReferences": _by("uid"),
    "podIPs": _by("ip"),
    "resourceClaims": _by("name"),
    "reservedFor": _by("uid"),
    "resourceClaimStatuses": _by("name"),
    "schedulingGates": _by("name"),
    "secrets": _by("name"),
    "topologySpreadConstraints": _by("topologyKey"),
    "volumeDevices": _by("devicePath"),
    "volumeMounts": _by("mountPath"),
    "volumes": _by("name"),
}
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")


def builtin_rules(path: FieldNames) -> ListRule:
    """Return the strategic merge patch rule for a list of a built-in kind."""
    if path[-1] == "ports":
        return _by("containerPort") if len(path) > 1 and path[-2] in _CONTAINERS else _by("port")
    return _BUILTIN.get(path[-1], ATOMIC)


def builtin_apply_rules(path: FieldNames) -> ListRule:
    """Return the server-side apply rule for a list of a built-in kind.

    It identifies ports by number and protocol (``listMapKey`` markers of k8s.io/api).
    """
    rule = builtin_rules(path)
    return ListRule((*rule.keys, "protocol")) if path[-1] == "ports" else rule


def schema_rules(schema: JsonObject) -> ListRules:
    """Return the rules that the schema of a CustomResourceDefinition specifies with ``x-kubernetes-list-type``."""

    def rule(path: FieldNames) -> ListRule:
        if path[0] == "metadata":
            return builtin_rules(path)
        here: JsonObject = schema
        for step in path:
            while isinstance(here.get("items"), dict):
                here = here["items"]
            inner = (here.get("properties") or {}).get(step, here.get("additionalProperties"))
            if not isinstance(inner, dict):
                return ATOMIC
            here = inner
        kind = here.get("x-kubernetes-list-type")
        if kind == "map":
            return ListRule(tuple(here.get("x-kubernetes-list-map-keys") or ()))
        return SET if kind == "set" else ATOMIC

    return rule


Step = str | tuple[Any, ...]  # a field name, or the identity of a list item
Path = tuple[Step, ...]
Leaves = dict[Path, Any]

_ITEM: Final = object()  # marks the existence of a list item, independent of its content
_UNOWNED: Final = frozenset(("apiVersion", "kind"))
_UNOWNED_METADATA: Final = frozenset(
    ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "managedFields", "generation")
)


def leaves_of(applied: JsonObject, rules: ListRules) -> Leaves:
    """Return the leaves of an applied configuration."""
    claimed = {name: value for name, value in applied.items() if name not in _UNOWNED}
    if isinstance(claimed.get("metadata"), dict):
        claimed["metadata"] = {k: v for k, v in claimed["metadata"].items() if k not in _UNOWNED_METADATA}
    return dict(_leaves(claimed, (), (), rules))


def _leaves(value: Any, path: Path, names: FieldNames, rules: ListRules) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name), (*names, name), rules)
    elif isinstance(value, list) and names and (rule := rules(names)).keys:
        for item in value:
            here: Path = (*path, _identity(rule.identity(item), item))
            yield here, _ITEM
            yield from _leaves(item, here, names, rules)
    elif isinstance(value, list) and names and rules(names).is_set:
        for item in value:
            yield (*path, (item,)), _ITEM
    elif path:
        yield path, value


def _identity(found: tuple[Any, ...] | None, item: Any) -> tuple[Any, ...]:
    if found is None:
        raise ApiError(422, "Invalid", f"the applied list item {item} lacks one of the fields that tell items apart")
    return found


class Ownership:
    """The fields that the managers of an object own."""

    def __init__(self) -> None:
        """Start without owned fields."""
        self._leaves: dict[str, Leaves] = {}

    def conflicts(self, manager: str, wanted: Leaves) -> dict[str, list[Path]]:
        """Return the paths on which other managers conflict with the wanted leaves, by manager."""
        found: dict[str, list[Path]] = {}
        for other, owned in sorted(self._leaves.items()):
            paths = [path for path, value in wanted.items() if path in owned and owned[path] != value]
            if other != manager and paths:
                found[other] = paths
        return found

    def abandoned(self, manager: str, wanted: Leaves) -> list[Path]:
        """Return the paths that ``manager`` applied before, no longer applies, and no other manager owns.

        Items precede their fields.
        """
        others = {path for other, owned in self._leaves.items() if other != manager for path in owned}
        gone = (path for path in self._leaves.get(manager, {}) if path not in wanted and path not in others)
        return sorted(gone, key=len)

    def copy(self) -> "Ownership":
        """Return an independent copy."""
        copied = Ownership()
        copied._leaves = {manager: dict(leaves) for manager, leaves in self._leaves.items()}
        return copied

    def managed_fields(self, api_version: str) -> list[JsonObject]:
        """Return ``metadata.managedFields``: an entry per manager with its fields down to the first list."""
        return [
            {
                "manager": manager,
                "operation": "Apply",
                "apiVersion": api_version,
                "fieldsType": "FieldsV1",
                "fieldsV1": _fields(leaves),
            }
            for manager, leaves in sorted(self._leaves.items())
            if leaves
        ]

    def take(self, manager: str, wanted: Leaves) -> None:
        """Set the fields that ``manager`` owns. Other managers lose the fields on which they conflict."""
        for other, paths in self.conflicts(manager, wanted).items():
            for path in paths:
                del self._leaves[other][path]
        self._leaves[manager] = wanted


def _fields(leaves: Leaves) -> JsonObject:
    found: JsonObject = {}
    for path in leaves:
        here = found
        for step in path:
            if not isinstance(step, str):
                break  # list items are omitted: no client of the sandbox reads them
            here = here.setdefault(f"f:{step}", {})
    return found


def conflict_error(conflicts: dict[str, list[Path]]) -> ApiError:
    """Return the 409 error of an apply that is not forced."""
    fields = [(manager, _dotted(path)) for manager, paths in conflicts.items() for path in paths]
    listed = "; ".join(f'conflict with "{manager}": {path}' for manager, path in fields)
    plural = "s" if len(fields) > 1 else ""
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"', "field": path}
        for manager, path in fields
    ]
    return ApiError(409, "Conflict", f"Apply failed with {len(fields)} conflict{plural}: {listed}", {"causes": causes})


def _dotted(path: Path) -> str:
    return "".join(f".{step}" if isinstance(step, str) else str(list(step)) for step in path)


def merge_applied(current: Any, applied: Any, rules: ListRules, names: FieldNames = ()) -> Any:
    """Return the current value merged with an applied configuration."""
    if isinstance(applied, dict) and isinstance(current, dict):
        merged = dict(current)
        for name, value in applied.items():
            merged[name] = merge_applied(merged[name], value, rules, (*names, name)) if name in merged else clone(value)
        return merged
    if not (isinstance(applied, list) and isinstance(current, list) and names):
        return clone(applied)
    rule = rules(names)
    if rule.is_set:
        return [*current, *(item for item in applied if item not in current)]
    if not rule.keys:
        return clone(applied)
    items = list(current)
    for item in applied:
        identity = rule.identity(item)
        place = next((place for place, known in enumerate(items) if rule.identity(known) == identity), None)
        if place is None:
            items.append(clone(item))
        else:
            items[place] = merge_applied(items[place], item, rules, names)
    return items


def remove(document: JsonObject, path: Path, rules: ListRules) -> None:
    """Remove an owned leaf from the document. An absent leaf is ignored."""
    here: Any = document
    names: FieldNames = ()
    for step in path[:-1]:
        here, names = _descend(here, step, names, rules)
    last = path[-1]
    if isinstance(here, dict):
        here.pop(last, None)
    elif isinstance(here, list):
        rule = rules(names)
        here[:] = [item for item in here if ((item,) if rule.is_set else rule.identity(item)) != last]


def _descend(here: Any, step: Step, names: FieldNames, rules: ListRules) -> tuple[Any, FieldNames]:
    if isinstance(step, str):
        return (here.get(step), (*names, step)) if isinstance(here, dict) else (None, names)
    items = here if isinstance(here, list) else []
    return next((item for item in items if rules(names).identity(item) == step), None), names


# The patch formats of the API: JSON merge patch (RFC 7386), JSON patch (RFC 6902) and strategic merge patch.
#
# Pure functions on documents that do not change their arguments.

MAX_OPERATIONS: Final = 10_000  # maximum operations of a JSON patch (apiserver, handlers/patch.go)

_DIRECTIVE: Final = "$patch"
_DELETE_PRIMITIVES: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"
_RETAIN: Final = "$retainKeys"


def merge_patch(document: Any, patch: Any) -> Any:
    """Return the document with a JSON merge patch applied. Objects merge, null deletes, other values replace."""
    if not isinstance(patch, dict):
        return clone(patch)
    merged = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def json_patch(document: JsonObject, operations: Any) -> Any:
    """Return the document with a JSON patch applied.

    Raises ``ApiError`` with code 400 for a malformed patch, 413 for too many operations and 422 for a patch that
    cannot be applied.
    """
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise bad_request("a JSON patch must be a list of operations")
    if len(operations) > MAX_OPERATIONS:
        message = f"the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise ApiError(413, "RequestEntityTooLarge", message)
    try:
        return jsonpatch.JsonPatch(operations).apply(document)
    except (jsonpatch.InvalidJsonPatch, jsonpointer.JsonPointerException) as problem:
        if isinstance(problem, jsonpatch.InvalidJsonPatch):
            raise bad_request(f"invalid JSON patch: {problem}") from problem
        raise _unprocessable(problem) from problem
    # The library raises built-in exceptions when a path passes through a value without members.
    except (jsonpatch.JsonPatchException, TypeError, KeyError, IndexError) as problem:
        raise _unprocessable(problem) from problem


def _unprocessable(problem: Exception) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error in our request: {problem}")


def strategic_merge_patch(document: JsonObject, patch: Any) -> JsonObject:
    """Return the document of a built-in kind with a strategic merge patch applied.

    Lists with merge keys merge item by item.
    """
    if not isinstance(patch, dict):
        raise bad_request("a strategic merge patch must be an object")
    return _merge_objects(document, patch, ())


def _merge_objects(document: Any, patch: JsonObject, path: FieldNames) -> JsonObject:
    merged: JsonObject = dict(document) if isinstance(document, dict) else {}
    directive = patch.get(_DIRECTIVE)
    if directive == "delete":
        return {}
    if directive == "replace":
        return {name: clone(value) for name, value in patch.items() if not name.startswith("$")}
    # Applied before the fields: members of a union, such as a volume's source, that the new member excludes are
    # removed.
    retained = patch.get(_RETAIN)
    if isinstance(retained, list):
        merged = {name: value for name, value in merged.items() if name in retained}
    for name, value in patch.items():
        if name.startswith(_DELETE_PRIMITIVES):
            field = name.removeprefix(_DELETE_PRIMITIVES)
            if not isinstance(value, list):
                raise bad_request(f"{name} must be a list")
            merged[field] = [item for item in merged.get(field) or () if item not in value]
        elif not name.startswith("$"):
            _merge_field(merged, name, value, (*path, name))
    # Applied last: the order may name items that this patch has added.
    for name, order in patch.items():
        field = name.removeprefix(_ORDER)
        if field != name and isinstance(merged.get(field), list) and isinstance(order, list):
            merged[field] = _in_order(merged[field], order, builtin_rules((*path, field)))
    return merged


def _merge_field(merged: JsonObject, name: str, value: Any, path: FieldNames) -> None:
    if value is None:
        merged.pop(name, None)
    elif isinstance(value, dict):
        merged[name] = _merge_objects(merged.get(name), value, path)
    elif isinstance(value, list):
        merged[name] = _merge_lists(merged.get(name) or [], value, path)
    else:
        merged[name] = value


def _merge_lists(current: list[Any], patch: list[Any], path: FieldNames) -> list[Any]:
    rule = builtin_rules(path)
    if rule.is_set:
        return [*current, *(item for item in patch if item not in current)]
    # An atomic list: without merge keys, items cannot be matched.
    if not rule.keys:
        return [clone(item) for item in patch]
    if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in patch):
        return [
            item
            for item in patch
            if not (isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" and len(item) == 1)
        ]
    merged = list(current)
    for item in patch:
        identity = rule.identity(item)
        if identity is None:
            raise bad_request(f"map: {item} does not contain declared merge key: {rule.keys[0]}")
        place = next((place for place, known in enumerate(merged) if rule.identity(known) == identity), None)
        if item.get(_DIRECTIVE) == "delete":
            if place is not None:
                del merged[place]
        elif place is None:
            merged.append(_merge_objects({}, item, path))
        else:
            merged[place] = _merge_objects(merged[place], item, path)
    return merged


def _in_order(items: list[Any], order: list[Any], rule: ListRule) -> list[Any]:
    """Sort the items that the order names into their current positions. Other items keep their positions."""

    def sort_key(item: Any) -> Any:
        return rule.identity(item) if rule.keys else item

    wanted = [sort_key(item) for item in order]
    named = iter(
        sorted((item for item in items if sort_key(item) in wanted), key=lambda item: wanted.index(sort_key(item)))
    )
    return [next(named) if sort_key(item) in wanted else item for item in items]
