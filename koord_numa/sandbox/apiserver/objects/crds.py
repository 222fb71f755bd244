"""CustomResourceDefinitions: when one is acceptable, the kind it serves, and what its schemas do to objects."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from koord_numa.sandbox.apiserver.errors import Cause, duplicate, invalid_value, required, unsupported
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dig, section, timestamp
from koord_numa.sandbox.apiserver.objects.kinds import COMMON_FIELDS, Generation, Kind, Scope
from koord_numa.sandbox.apiserver.objects.metaschema import schema_causes
from koord_numa.sandbox.apiserver.objects.schema import validate
from koord_numa.sandbox.apiserver.objects.structure import fill_defaults, prune

_SCOPES: Final = ("Cluster", "Namespaced")
_IDENTITY: Final = ("apiVersion", "kind", "metadata")


@dataclass(frozen=True, slots=True)
class CustomVersion:
    """One version of a custom kind: its schema and the columns ``kubectl get`` prints."""

    schema: JsonObject
    columns: tuple[JsonObject, ...]

    def shape(self, document: JsonObject) -> list[str]:
        """Prune and default a document in place; returns the paths of pruned fields."""
        pruned = prune(document, self.schema)
        fill_defaults(document, self.schema)
        return pruned

    def causes(self, document: JsonObject) -> Iterator[Cause]:
        """What the schema finds wrong; metadata has its own rules."""
        schema = dict(self.schema)
        properties = schema.get("properties")
        if isinstance(properties, dict):
            # The server itself checks identity and metadata, by rules that no schema can change.
            schema["properties"] = {name: value for name, value in properties.items() if name not in _IDENTITY}
        yield from validate(document, schema)


def default_crd(crd: JsonObject) -> None:
    """Fill in the names that follow from others."""
    spec = section(crd, "spec")
    names = section(spec, "names")
    kind = names.get("kind")
    if isinstance(kind, str) and kind:
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})


def begin_crd(crd: JsonObject) -> None:
    """The status of an established definition: this server establishes it within the request that writes it."""
    spec = crd["spec"]
    # Versions that were ever stored stay listed: objects may be kept in them.
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
    """All that is wrong with a definition, after defaulting."""
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
    """The kind that an accepted definition serves."""
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
        scope=Scope(spec["scope"]),
        short_names=tuple(names.get("shortNames") or ()),
        subresources=tuple(subresources),
        generation=Generation.COUNTED,
        categories=tuple(names.get("categories") or ()),
        fields={**COMMON_FIELDS, **fields},
        storage_version=storage["name"],
        custom=True,
    )


def versions_of(crd: JsonObject) -> dict[str, CustomVersion]:
    """The schemas and columns of an accepted definition's versions, unserved ones too."""
    return {
        version["name"]: CustomVersion(
            version["schema"]["openAPIV3Schema"], tuple(version.get("additionalPrinterColumns") or ())
        )
        for version in crd["spec"]["versions"]
    }
