"""Validation, pruning and defaulting by schemas: CustomResourceDefinitions, and the fields of built-in kinds that this server reads."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from koord_numa.core.resources import parse_quantity
from koord_numa.sandbox.apiserver.documents import JsonObject, clone, dig, dumps, section, timestamp
from koord_numa.sandbox.apiserver.errors import Cause, duplicate, invalid_value, required, unsupported
from koord_numa.sandbox.apiserver.kinds import COMMON_FIELDS, Generation, Kind, KindScope

INT_OR_STRING: Final = "x-kubernetes-int-or-string"
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
EMBEDDED: Final = "x-kubernetes-embedded-resource"


def validate(value: Any, schema: JsonObject, path: str = "") -> Iterator[Cause]:
    """Yield the schema violations of a value. ``path`` is the path of the field in messages."""
    if value is None and schema.get("nullable"):
        return
    problem = _type_problem(value, schema)
    if problem:
        yield Cause(
            path,
            f"Invalid value: {_shown(value)}: {path} in body must be of type {problem}: {_shown(value)}",
            "FieldValueTypeInvalid",
        )
        return
    yield from _enumerated(value, schema, path)
    if isinstance(value, dict):
        yield from _object(value, schema, path)
    elif isinstance(value, list):
        yield from _list(value, schema, path)
    elif isinstance(value, str):
        yield from _text(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(value, schema, path)
    if not _COMBINING.isdisjoint(schema):
        yield from _combined(value, schema, path)


_COMBINING: Final = frozenset({"allOf", "anyOf", "oneOf", "not"})

_TYPE_ONLY: Final = frozenset({"type", "description", "default"})
"""Schema keys besides which only the type can be violated."""

_PLAIN: Final[Mapping[str, type]] = {"string": str, "boolean": bool, "integer": int}


def _is_plain(value: Any, schema: JsonObject) -> bool:
    """Report whether a shallow check finds the value valid.

    Most values of large objects pass and need no path and no generator.
    """
    return type(value) is _PLAIN.get(schema.get("type") or "") and schema.keys() <= _TYPE_ONLY


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: not isinstance(value, bool) and (isinstance(value, int) or _whole(value)),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def _whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _type_problem(value: Any, schema: JsonObject) -> str:
    if schema.get(INT_OR_STRING):
        return "" if isinstance(value, int | str) and not isinstance(value, bool) else "integer,string"
    wanted = schema.get("type")
    check = _TYPES.get(wanted or "")
    return "" if check is None or check(value) else str(wanted)


def _shown(value: Any) -> str:
    if value is None:
        return '"null"'
    if isinstance(value, dict | list):
        return dumps(value).decode()
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _enumerated(value: Any, schema: JsonObject, path: str) -> Iterator[Cause]:
    choices = schema.get("enum")
    if choices is not None and not any(value == choice and type(value) is type(choice) for choice in choices):
        yield unsupported(path, value, [str(choice) for choice in choices])


def _object(value: JsonObject, schema: JsonObject, path: str) -> Iterator[Cause]:
    for name in schema.get("required") or ():
        if name not in value:
            yield required(_join(path, name))
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    for name, inner in value.items():
        inner_schema = properties.get(name, extra)
        if isinstance(inner_schema, dict) and not _is_plain(inner, inner_schema):
            yield from validate(inner, inner_schema, _join(path, name))
    yield from _bounds(len(value), schema, path, ("minProperties", "maxProperties", "properties"))


def _list(value: list[Any], schema: JsonObject, path: str) -> Iterator[Cause]:
    items = schema.get("items")
    if isinstance(items, dict):
        for index, item in enumerate(value):
            if not _is_plain(item, items):
                yield from validate(item, items, f"{path}[{index}]")
    yield from _bounds(len(value), schema, path, ("minItems", "maxItems", "items"))
    kind = schema.get("x-kubernetes-list-type")
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    seen: set[bytes] = set()
    for index, item in enumerate(value):
        if kind == "map" and isinstance(item, dict):
            identity: Any = {key: item.get(key) for key in keys}
        elif kind == "set" or schema.get("uniqueItems"):
            identity = item
        else:
            continue
        text = dumps(identity)
        if text in seen:
            yield duplicate(f"{path}[{index}]", text.decode())
        seen.add(text)


def _bounds(count: int, schema: JsonObject, path: str, names: tuple[str, str, str]) -> Iterator[Cause]:
    least, most, word = names
    if least in schema and count < schema[least]:
        yield invalid_value(path, count, f"{path} in body should have at least {schema[least]} {word}")
    if most in schema and count > schema[most]:
        yield Cause(path, f"Too many: {count}: must have at most {schema[most]} {word}", "FieldValueTooMany")


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def is_pattern(text: object) -> bool:
    """Report whether a text is a regular expression that Python can compile."""
    try:
        return isinstance(text, str) and _pattern(text) is not None
    except re.error:
        return False


_DATE_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _text(value: str, schema: JsonObject, path: str) -> Iterator[Cause]:
    if len(value) < schema.get("minLength", 0):
        yield invalid_value(path, value, f"{path} in body should be at least {schema['minLength']} chars long")
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        yield Cause(path, f"Too long: may not be more than {schema['maxLength']} bytes", "FieldValueTooLong")
    if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
        yield invalid_value(path, value, f"{path} in body should match '{schema['pattern']}'")
    if schema.get("format") == "date-time" and not _DATE_TIME.fullmatch(value):
        yield invalid_value(path, value, f'{path} in body must be of type date-time: "{value}"')


def _number(value: float, schema: JsonObject, path: str) -> Iterator[Cause]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and (value < least or (schema.get("exclusiveMinimum") and value == least)):
        word = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
        yield invalid_value(path, value, f"{path} in body should be {word} {least}")
    if most is not None and (value > most or (schema.get("exclusiveMaximum") and value == most)):
        word = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
        yield invalid_value(path, value, f"{path} in body should be {word} {most}")
    step = schema.get("multipleOf")
    if step and value % step:
        yield invalid_value(path, value, f"{path} in body should be a multiple of {step}")


def _combined(value: Any, schema: JsonObject, path: str) -> Iterator[Cause]:
    for inner in schema.get("allOf") or ():
        yield from validate(value, inner, path)
    fitting = [sum(_fits(value, inner, path) for inner in schema.get(name) or ()) for name in ("anyOf", "oneOf")]
    if schema.get("anyOf") and not fitting[0]:
        yield invalid_value(path, _shown(value), f"{path} in body must validate at least one schema (anyOf)")
    if schema.get("oneOf") and fitting[1] != 1:
        yield invalid_value(path, _shown(value), f"{path} in body must validate one and only one schema (oneOf)")
    if isinstance(schema.get("not"), dict) and _fits(value, schema["not"], path):
        yield invalid_value(path, _shown(value), f"{path} in body must not validate the schema (not)")


def _fits(value: Any, schema: JsonObject, path: str) -> bool:
    return next(validate(value, schema, path), None) is None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_ROOT_FIELDS: Final = frozenset(("apiVersion", "kind", "metadata"))


def prune(document: JsonObject, schema: JsonObject) -> list[str]:
    """Remove the fields that the schema of a whole object does not specify. Returns the removed paths."""
    removed: list[str] = []
    _prune_object(document, schema, "", removed, root=True)
    return removed


def _prune_object(value: JsonObject, schema: JsonObject, path: str, removed: list[str], *, root: bool = False) -> None:
    keep_unknown = bool(schema.get(PRESERVE))
    embedded = root or bool(schema.get(EMBEDDED))
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    for name in list(value):
        where = f"{path}.{name}" if path else name
        if embedded and name in _ROOT_FIELDS:
            continue
        if name in properties:
            _prune_value(value[name], properties[name], where, removed)
        elif isinstance(extra, dict):
            _prune_value(value[name], extra, where, removed)
        elif extra is not True and not keep_unknown:
            del value[name]
            removed.append(where)


def _prune_value(value: Any, schema: JsonObject, path: str, removed: list[str]) -> None:
    if isinstance(value, dict):
        _prune_object(value, schema, path, removed)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, item in enumerate(value):
            _prune_value(item, schema["items"], f"{path}[{index}]", removed)


def fill_defaults(value: Any, schema: JsonObject) -> None:
    """Set every absent field that has a default. A null counts as absent if the field is not nullable."""
    if isinstance(value, dict):
        _fill_object(value, schema)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            fill_defaults(item, schema["items"])


def _fill_object(value: JsonObject, schema: JsonObject) -> None:
    properties = schema.get("properties") or {}
    for name, inner in properties.items():
        if name in value and value[name] is None and not inner.get("nullable"):
            del value[name]
        if name not in value and "default" in inner:
            value[name] = clone(inner["default"])
    extra = schema.get("additionalProperties")
    for name, inner_value in value.items():
        inner = properties.get(name, extra)
        if isinstance(inner, dict):
            fill_defaults(inner_value, inner)


_IDENTITY: Final = ("apiVersion", "kind", "metadata")
_SCHEMA_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")

_TEXT: Final[JsonObject] = {"type": "string"}
_FLAG: Final[JsonObject] = {"type": "boolean"}
_NUMBER: Final[JsonObject] = {"type": "number"}
_LENGTH: Final[JsonObject] = {"type": "integer", "minimum": 0}
_SCHEMAS: Final[JsonObject] = {"type": "array", "items": {"type": "object"}}
_TEXTS: Final[JsonObject] = {"type": "array", "items": _TEXT}
_LENGTHS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_FLAGS: Final = ("nullable", "uniqueItems", "exclusiveMinimum", "exclusiveMaximum", INT_OR_STRING, PRESERVE)
_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "type": _TEXT,
        "format": _TEXT,
        "pattern": _TEXT,
        "required": _TEXTS,
        "enum": {"type": "array", "items": {}},
        "properties": {"type": "object", "additionalProperties": {"type": "object"}},
        "items": {"type": "object"},
        "not": {"type": "object"},
        "allOf": _SCHEMAS,
        "anyOf": _SCHEMAS,
        "oneOf": _SCHEMAS,
        "minimum": _NUMBER,
        "maximum": _NUMBER,
        "multipleOf": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
        "x-kubernetes-list-type": {"type": "string", "enum": ["atomic", "map", "set"]},
        "x-kubernetes-list-map-keys": _TEXTS,
        **dict.fromkeys(_LENGTHS, _LENGTH),
        **dict.fromkeys(_FLAGS, _FLAG),
    },
}


def schema_causes(schema: JsonObject, path: str) -> Iterator[Cause]:
    """Yield the errors in the schema of a whole object."""
    malformed = list(_malformed(schema, path))
    yield from malformed or _unstructured(schema, path, root=True)


def _malformed(schema: Any, path: str) -> Iterator[Cause]:
    found = list(validate(schema, _SCHEMA, path))
    if found:
        yield from found
        return
    if "pattern" in schema and not is_pattern(schema["pattern"]):
        yield invalid_value(f"{path}.pattern", schema["pattern"], "must be a valid regular expression")
    for name, inner in (schema.get("properties") or {}).items():
        yield from _malformed(inner, f"{path}.properties[{name}]")
    for name in ("items", "not", "additionalProperties"):
        inner = schema.get(name)
        if isinstance(inner, dict):
            yield from _malformed(inner, f"{path}.{name}")
        elif name == "additionalProperties" and not isinstance(inner, bool | None):
            yield invalid_value(f"{path}.{name}", str(inner), "must be a schema or a boolean")
    for name in ("allOf", "anyOf", "oneOf"):
        for index, inner in enumerate(schema.get(name) or ()):
            yield from _malformed(inner, f"{path}.{name}[{index}]")


def _unstructured(schema: JsonObject, path: str, *, root: bool = False) -> Iterator[Cause]:
    """Yield violations of the structural schema rules.

    These are a missing or unknown type, or a default that violates its own schema.
    """
    kind = schema.get("type")
    if root and kind != "object":
        yield invalid_value(f"{path}.type", kind or "", "must be object at the root")
    elif kind is None and not (schema.get(INT_OR_STRING) or schema.get(PRESERVE)):
        yield required(f"{path}.type", "must not be empty for specified object fields")
    elif kind is not None and kind not in _SCHEMA_TYPES:
        yield unsupported(f"{path}.type", kind, _SCHEMA_TYPES)
    elif "default" in schema:
        yield from validate(schema["default"], schema, f"{path}.default")
    for name, inner in (schema.get("properties") or {}).items():
        if not (root and name in _IDENTITY):
            yield from _unstructured(inner, f"{path}.properties[{name}]")
    if "items" in schema:
        yield from _unstructured(schema["items"], f"{path}.items")
    elif kind == "array":
        yield required(f"{path}.items", "must be specified")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _unstructured(schema["additionalProperties"], f"{path}.additionalProperties")


_SCOPES: Final = ("Cluster", "Namespaced")


@dataclass(frozen=True, slots=True)
class CustomVersion:
    """A version of a custom kind: its schema and the columns that ``kubectl get`` prints."""

    schema: JsonObject
    columns: tuple[JsonObject, ...]

    def shape(self, document: JsonObject) -> list[str]:
        """Prune and default a document in place. Returns the paths of pruned fields."""
        pruned = prune(document, self.schema)
        fill_defaults(document, self.schema)
        return pruned

    def causes(self, document: JsonObject) -> Iterator[Cause]:
        """Yield the schema violations of a document. Metadata is validated by separate rules."""
        schema = dict(self.schema)
        properties = schema.get("properties")
        if isinstance(properties, dict):
            # The server validates apiVersion, kind and metadata by rules that no schema can change.
            schema["properties"] = {name: value for name, value in properties.items() if name not in _IDENTITY}
        yield from validate(document, schema)


def default_crd(crd: JsonObject) -> None:
    """Set the names that default from the kind, and the conversion strategy."""
    spec = section(crd, "spec")
    names = section(spec, "names")
    kind = names.get("kind")
    if isinstance(kind, str) and kind:
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})


def begin_crd(crd: JsonObject) -> None:
    """Set the status of an established definition. This server establishes it within the request that writes it."""
    spec = crd["spec"]
    # Earlier storage versions stay listed: objects may still be stored in them.
    stored = next((version.get("name") for version in spec.get("versions") or () if version.get("storage")), None)
    known = dig(crd, "status", "storedVersions") or []
    since = timestamp()
    crd["status"] = {
        "acceptedNames": dict(spec["names"]),
        "storedVersions": [*known, *([stored] if stored and stored not in known else [])],
        "conditions": dig(crd, "status", "conditions")
        or [
            _condition("NamesAccepted", "NoConflicts", "no conflicts found", since),
            _condition("Established", "InitialNamesAccepted", "the initial names have been accepted", since),
        ],
    }


def _condition(kind: str, reason: str, message: str, since: str) -> JsonObject:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since}


def crd_causes(crd: JsonObject) -> Iterator[Cause]:
    """Yield the errors of a definition after defaulting."""
    spec = crd["spec"]
    names = spec["names"]
    expected = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if crd["metadata"].get("name") != expected:
        yield invalid_value("metadata.name", crd["metadata"].get("name"), 'must be spec.names.plural+"."+spec.group')
    for field in ("plural", "kind"):
        if not names.get(field):
            yield required(f"spec.names.{field}")
    if not spec.get("group"):
        yield required("spec.group")
    if spec.get("scope") not in _SCOPES:
        yield unsupported("spec.scope", spec.get("scope", ""), _SCOPES)
    yield from _version_causes(spec.get("versions") or [])


def _version_causes(versions: list[JsonObject]) -> Iterator[Cause]:
    if sum(bool(version.get("storage")) for version in versions) != 1:
        yield invalid_value(
            "spec.versions",
            [v.get("name") for v in versions],
            "must have exactly one version marked as storage version",
        )
    seen: set[str] = set()
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        if not version.get("name"):
            yield required(f"{path}.name")
        elif version["name"] in seen:
            yield duplicate(f"{path}.name", version["name"])
        seen.add(str(version.get("name")))
        schema = dig(version, "schema", "openAPIV3Schema")
        if not isinstance(schema, dict):
            yield required(f"{path}.schema.openAPIV3Schema", "schemas are required")
        else:
            yield from schema_causes(schema, f"{path}.schema.openAPIV3Schema")


def kind_of(crd: JsonObject) -> Kind:
    """Return the kind that an accepted definition serves."""
    spec = crd["spec"]
    names = spec["names"]
    served = [version for version in spec["versions"] if version.get("served")]
    storage = next(version for version in spec["versions"] if version.get("storage"))
    fields = {
        one["jsonPath"].lstrip("."): tuple(one["jsonPath"].lstrip(".").split("."))
        for version in served
        for one in version.get("selectableFields") or ()
    }
    subresources = sorted(
        {name for version in served for name in version.get("subresources") or {} if name == "status"}
    )
    return Kind(
        group=spec["group"],
        versions=tuple(version["name"] for version in served),
        kind=names["kind"],
        plural=names["plural"],
        scope=KindScope(spec["scope"]),
        short_names=tuple(names.get("shortNames") or ()),
        subresources=tuple(subresources),
        generation=Generation.COUNTED,
        categories=tuple(names.get("categories") or ()),
        fields={**COMMON_FIELDS, **fields},
        storage_version=storage["name"],
        custom=True,
    )


def versions_of(crd: JsonObject) -> dict[str, CustomVersion]:
    """Return the schemas and columns of all versions of an accepted definition, also of versions that are not served."""
    return {
        version["name"]: CustomVersion(
            version["schema"]["openAPIV3Schema"], tuple(version.get("additionalPrinterColumns") or ())
        )
        for version in crd["spec"]["versions"]
    }


# JSON types of the fields of built-in kinds that this server reads. Malformed objects are rejected as undecodable.
#
# Only types are checked here. ``rules.py`` validates values, and the JSON schemas list the names of all fields.
# Fields that are not listed may hold any value.

QUANTITY_RULE: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_TIME: Final[JsonObject] = {"type": "string", "format": "date-time"}
_COUNT: Final[JsonObject] = {"type": "integer"}
_ANYTHING: Final[JsonObject] = {"type": "object"}
_SHAPE_TEXTS: Final[JsonObject] = {"type": "object", "additionalProperties": _TEXT}
_INT_OR_TEXT: Final[JsonObject] = {"x-kubernetes-int-or-string": True}


def _object_shape(**fields: JsonObject) -> JsonObject:
    return {"type": "object", "properties": fields}


def _list_shape(items: JsonObject) -> JsonObject:
    return {"type": "array", "items": items}


_SELECTOR: Final = _object_shape(
    matchLabels=_SHAPE_TEXTS,
    matchExpressions=_list_shape(_object_shape(key=_TEXT, operator=_TEXT, values=_list_shape(_TEXT))),
)
_CONDITIONS: Final = _list_shape(_object_shape(type=_TEXT, status=_TEXT, reason=_TEXT, message=_TEXT))
_CONTAINERS: Final = _list_shape(
    _object_shape(
        name=_TEXT,
        image=_TEXT,
        imagePullPolicy=_TEXT,
        resources=_object_shape(requests=_ANYTHING, limits=_ANYTHING),
        ports=_list_shape(_object_shape(containerPort=_COUNT, hostPort=_COUNT, protocol=_TEXT)),
        env=_list_shape(_ANYTHING),
    )
)
_POD: Final = _object_shape(
    spec=_object_shape(
        containers=_CONTAINERS,
        initContainers=_CONTAINERS,
        nodeName=_TEXT,
        schedulerName=_TEXT,
        restartPolicy=_TEXT,
        dnsPolicy=_TEXT,
        serviceAccountName=_TEXT,
        serviceAccount=_TEXT,
        priorityClassName=_TEXT,
        priority=_COUNT,
        terminationGracePeriodSeconds=_COUNT,
        hostNetwork=_FLAG,
        nodeSelector=_SHAPE_TEXTS,
        affinity=_ANYTHING,
        tolerations=_list_shape(
            _object_shape(key=_TEXT, operator=_TEXT, value=_TEXT, effect=_TEXT, tolerationSeconds=_COUNT)
        ),
        schedulingGates=_list_shape(_object_shape(name=_TEXT)),
        volumes=_list_shape(_object_shape(name=_TEXT)),
    ),
    status=_object_shape(
        phase=_TEXT,
        conditions=_CONDITIONS,
        containerStatuses=_list_shape(_object_shape(ready=_FLAG, restartCount=_COUNT)),
    ),
)
_NODE: Final = _object_shape(
    spec=_object_shape(taints=_list_shape(_object_shape(key=_TEXT, value=_TEXT, effect=_TEXT)), unschedulable=_FLAG),
    status=_object_shape(
        capacity=_ANYTHING,
        allocatable=_ANYTHING,
        conditions=_CONDITIONS,
        addresses=_list_shape(_object_shape(type=_TEXT, address=_TEXT)),
        nodeInfo=_SHAPE_TEXTS,
    ),
)
_EVENT: Final = _object_shape(
    involvedObject=_SHAPE_TEXTS,
    related=_SHAPE_TEXTS,
    source=_SHAPE_TEXTS,
    reason=_TEXT,
    message=_TEXT,
    type=_TEXT,
    action=_TEXT,
    eventTime=_TIME,
    reportingComponent=_TEXT,
    reportingInstance=_TEXT,
    count=_COUNT,
    series=_object_shape(count=_COUNT, lastObservedTime=_TIME),
)
_LEASE: Final = _object_shape(
    spec=_object_shape(
        holderIdentity=_TEXT, leaseDurationSeconds=_COUNT, leaseTransitions=_COUNT, renewTime=_TIME, acquireTime=_TIME
    )
)
_BUDGET: Final = _object_shape(
    spec=_object_shape(
        selector=_SELECTOR, minAvailable=_INT_OR_TEXT, maxUnavailable=_INT_OR_TEXT, unhealthyPodEvictionPolicy=_TEXT
    ),
    status=_object_shape(
        disruptionsAllowed=_COUNT, currentHealthy=_COUNT, desiredHealthy=_COUNT, disruptedPods=_SHAPE_TEXTS
    ),
)
_NAMES: Final = _object_shape(
    plural=_TEXT,
    singular=_TEXT,
    kind=_TEXT,
    listKind=_TEXT,
    shortNames=_list_shape(_TEXT),
    categories=_list_shape(_TEXT),
)
_VERSION: Final = _object_shape(
    name=_TEXT,
    served=_FLAG,
    storage=_FLAG,
    schema=_object_shape(openAPIV3Schema=_ANYTHING),
    subresources=_ANYTHING,
    selectableFields=_list_shape(_object_shape(jsonPath=_TEXT)),
    additionalPrinterColumns=_list_shape(
        _object_shape(name=_TEXT, type=_TEXT, jsonPath=_TEXT, description=_TEXT, format=_TEXT, priority=_COUNT)
    ),
)
_DEFINITION: Final = _object_shape(
    spec=_object_shape(group=_TEXT, scope=_TEXT, names=_NAMES, versions=_list_shape(_VERSION)),
    status=_object_shape(storedVersions=_list_shape(_TEXT), conditions=_CONDITIONS),
)
_SHAPES: Final[Mapping[str, JsonObject]] = {
    "pods": _POD,
    "nodes": _NODE,
    "namespaces": _object_shape(spec=_object_shape(finalizers=_list_shape(_TEXT)), status=_object_shape(phase=_TEXT)),
    "events": _EVENT,
    "events.events.k8s.io": _EVENT,
    "configmaps": _object_shape(data=_SHAPE_TEXTS, binaryData=_SHAPE_TEXTS, immutable=_FLAG),
    "secrets": _object_shape(data=_SHAPE_TEXTS, stringData=_SHAPE_TEXTS, immutable=_FLAG, type=_TEXT),
    "leases.coordination.k8s.io": _LEASE,
    "poddisruptionbudgets.policy": _BUDGET,
    "priorityclasses.scheduling.k8s.io": _object_shape(value=_COUNT, globalDefault=_FLAG, preemptionPolicy=_TEXT),
    "customresourcedefinitions.apiextensions.k8s.io": _DEFINITION,
}
_OTHER: Final = _object_shape(spec=_ANYTHING, status=_ANYTHING)


def shape_problem(qualified: str, document: JsonObject) -> str:
    """Return why an object of a built-in kind cannot be decoded, or ""."""
    cause = next(validate(document, _SHAPES.get(qualified, _OTHER)), None)
    if cause is not None:
        return f"{cause.field}: {cause.message}"
    for path, amounts in _amounts(qualified, document):
        for name, amount in amounts.items():
            try:
                parse_quantity(amount)
            except ValueError:
                return f"{path}.{name}: {QUANTITY_RULE}"
    return ""


def _amounts(qualified: str, document: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield every map of quantities in a pod or node with its path."""
    if qualified == "nodes":
        status = document.get("status") or {}
        for part in ("capacity", "allocatable"):
            yield f"status.{part}", status.get(part) or {}
    elif qualified == "pods":
        spec = document.get("spec") or {}
        for name in ("containers", "initContainers"):
            for index, container in enumerate(spec.get(name) or ()):
                resources = container.get("resources") or {}
                for part in ("requests", "limits"):
                    yield f"spec.{name}[{index}].resources.{part}", resources.get(part) or {}


def without_nulls(value: Any) -> Any:
    """Return the value without null fields, like decoding into the API's types and encoding again."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
