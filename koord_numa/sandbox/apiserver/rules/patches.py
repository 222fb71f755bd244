"""The patch formats of the API: JSON merge patch (RFC 7386), JSON patch (RFC 6902) and strategic merge patch.

Pure functions on documents that do not change their arguments.
"""

from typing import Any, Final

import jsonpatch
import jsonpointer

from koord_numa.sandbox.apiserver.errors import ApiError, bad_request
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, clone
from koord_numa.sandbox.apiserver.store.ownership import FieldNames, ListRule, builtin_rules

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
