"""Create, update, patch and apply.

The order of the steps is that of kube-apiserver: decode, lock, shape by schema, default, admit, validate, store.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Final
from uuid import uuid4

from koord_numa.sandbox.apiserver.backend import (
    Backend,
    Conflicts,
    FieldValidation,
    Target,
    WriteMode,
    WriteOptions,
    WriteOutcome,
    Written,
)
from koord_numa.sandbox.apiserver.crds import shape_problem, without_nulls
from koord_numa.sandbox.apiserver.deletion import Deleter
from koord_numa.sandbox.apiserver.documents import JsonObject, clone, metadata_of, section, timestamp
from koord_numa.sandbox.apiserver.errors import (
    ApiError,
    Cause,
    already_exists,
    bad_request,
    conflict,
    forbidden_field,
    invalid,
    invalid_value,
    modified_meanwhile,
    not_found,
)
from koord_numa.sandbox.apiserver.kinds import Generation, Kind, unknown_fields
from koord_numa.sandbox.apiserver.patches import (
    ListRules,
    Ownership,
    builtin_apply_rules,
    conflict_error,
    leaves_of,
    merge_applied,
    remove,
    schema_rules,
)
from koord_numa.sandbox.apiserver.pods import containers_of
from koord_numa.sandbox.apiserver.rules import admit, rules_of
from koord_numa.sandbox.apiserver.selectors import metadata_causes, metadata_type_problem
from koord_numa.sandbox.apiserver.storage import DELETED, Record, Table, TableChange, convert

_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # without vowels and similar characters (apimachinery util/rand)
_SUFFIX: Final = 5
_LONGEST: Final = 63


def generated_name(base: str) -> str:
    """Return the base with five random characters. A long base is truncated so that the name is a DNS label."""
    return base[: _LONGEST - _SUFFIX] + "".join(secrets.choice(_ALPHABET) for _ in range(_SUFFIX))


_SYSTEM_METADATA: Final = (
    "managedFields",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "generateName",
)


def settle(target: Target, old: JsonObject, proposed: JsonObject) -> JsonObject:
    """Return the old object with the changes that the resource or subresource permits."""
    if target.subresource == "status":
        settled = {**old, "status": proposed.get("status")}
        if settled["status"] is None:
            del settled["status"]
        settled["metadata"] = dict(old["metadata"])
        if not target.kind.custom:  # a status update of built-in kinds also sets labels and annotations
            for field in ("labels", "annotations"):
                _carry(proposed["metadata"], settled["metadata"], field)
        return settled
    if target.subresource == "resize":
        return _resized(old, proposed)
    settled = dict(proposed)
    settled["metadata"] = dict(proposed["metadata"])
    for field in (*_SYSTEM_METADATA, "name", "namespace", "resourceVersion"):
        _carry(old["metadata"], settled["metadata"], field)
    if target.kind.has_status:
        _carry(old, settled, "status")
    return settled


def _resized(old: JsonObject, proposed: JsonObject) -> JsonObject:
    """Return the old pod with the resources of the proposed containers."""
    resized: JsonObject = clone(old)
    wanted = {
        container.get("name"): container.get("resources") for _, container in containers_of(proposed.get("spec") or {})
    }
    for _, container in containers_of(resized["spec"]):
        container["resources"] = wanted.get(container["name"]) or container["resources"]
    return resized


def _carry(source: JsonObject, to: JsonObject, field: str) -> None:
    if field in source:
        to[field] = source[field]
    else:
        to.pop(field, None)


def desired(kind: Kind, document: JsonObject) -> JsonObject:
    """Return the part of an object whose changes increase the generation."""
    separate = ("metadata", "status") if kind.has_status else ("metadata",)
    return {name: value for name, value in document.items() if name not in separate}


Change = Callable[[JsonObject], JsonObject]

_DEFAULTS: Final = WriteOptions()


class Writer:
    """The verbs that write objects."""

    def __init__(self, backend: Backend, deleter: Deleter) -> None:
        """Create the verbs. ``deleter`` completes deletions that wait for their last finalizer."""
        self._backend = backend
        self._deleter = deleter
        self._owners: dict[str, Ownership] = {}  # by uid
        backend.storage.indexers.append(self._forget)

    def create(
        self,
        target: Target,
        document: JsonObject,
        options: WriteOptions = _DEFAULTS,
        managed: Sequence[JsonObject] = (),
    ) -> Written:
        """Create an object with these ``managedFields``. The document is changed in place.

        Raises 400, 403, 404, 409 and 422 like kube-apiserver.
        """
        kind = target.kind
        self._check_identity(target, document)
        metadata = section(document, "metadata")
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = generated_name(metadata["generateName"])
        name = metadata.get("name") or ""
        self._backend.check_namespace(kind, target.namespace, name)
        if kind.namespaced:
            metadata["namespace"] = target.namespace
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields", "selfLink"):
            metadata.pop(field, None)
        if managed:
            metadata["managedFields"] = list(managed)
        metadata["uid"] = str(uuid4())
        metadata["creationTimestamp"] = timestamp()
        document, warnings = self._shape(target, document, options)
        document = {"apiVersion": document["apiVersion"], "kind": kind.kind, **document}
        rules = rules_of(kind.qualified)
        rules.default(document)
        admit(self._backend, kind, document)
        if kind.custom and kind.has_status:
            document.pop("status", None)
        rules.begin(document)
        if kind.generation is Generation.COUNTED:
            metadata_of(document)["generation"] = 1
        self._check_valid(target, document)
        if self._backend.find(Target(kind, target.version, target.namespace, name)) is not None:
            raise already_exists(kind, name)
        if options.dry_run is WriteMode.ALL:
            return Written(self._backend.unstored(kind, document), WriteOutcome.CREATED, warnings)
        return Written(self._backend.put(kind, document), WriteOutcome.CREATED, warnings)

    def update(self, target: Target, document: JsonObject, options: WriteOptions = _DEFAULTS) -> Written:
        """Replace an object (PUT). Raises 409 when resourceVersion or uid differ from the stored object."""
        kind = target.kind
        rules = rules_of(kind.qualified)
        self._check_identity(target, document)
        current = self._backend.find(target)
        metadata = section(document, "metadata")
        if current is None:
            if rules.put_creates and not target.subresource and not metadata.get("uid"):
                metadata.pop("resourceVersion", None)
                return self.create(target, document, options)
            raise not_found(kind, target.name)
        uid = metadata.get("uid")
        if uid and uid != current.uid:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {current.uid}"
            raise conflict(kind, target.name, why)
        problem = shape_problem(kind.qualified, without_nulls(document)) if not kind.custom else ""
        if problem:
            raise _undecodable(kind, problem, target.version)
        if not metadata.get("resourceVersion") and (kind.custom or not rules.blind_updates):
            cause = invalid_value("metadata.resourceVersion", "0x0", "must be specified for an update")
            raise invalid(kind, target.name, [cause])
        return self._replace(target, current, document, options)

    def patch(self, target: Target, change: Change, options: WriteOptions = _DEFAULTS) -> Written:
        """Replace an object by the result of a patch.

        Raises 404, 409 for an outdated resourceVersion in the patch, and 422.
        """
        current = self._backend.get(target)
        patched = change(current.load_as(target.api_version))
        if not isinstance(patched, dict):
            raise bad_request("the patched document is not an object")
        self._check_identity(target, patched)
        uid = metadata_of(patched).get("uid")
        if uid and uid != current.uid:
            cause = invalid_value("metadata.uid", uid, "field is immutable")
            raise invalid(target.kind, target.name, [cause])
        return self._replace(target, current, patched, options)

    def apply(self, target: Target, applied: JsonObject, options: WriteOptions) -> Written:
        """Create or merge an object by server-side apply as ``options.manager``.

        Raises 409 for conflicts that are not forced.
        """
        if not options.manager:
            cause = Cause("fieldManager", "Required value: is required for apply patch", "FieldValueRequired")
            raise ApiError(422, "Invalid", f'PatchOptions.meta.k8s.io "" is invalid: {cause}')
        self._check_identity(target, applied)
        rules = self._list_rules(target)
        wanted = leaves_of(applied, rules)
        current = self._backend.find(target)
        if current is None:
            if target.subresource:
                raise not_found(target.kind, target.name)
            section(applied, "metadata")["name"] = target.name
            ownership = Ownership()
            ownership.take(options.manager, wanted)
            written = self.create(target, clone(applied), options, ownership.managed_fields(target.api_version))
        else:
            ownership = self._owners.get(current.uid, Ownership()).copy()
            conflicts = ownership.conflicts(options.manager, wanted)
            if conflicts and options.conflicts is Conflicts.REFUSE:
                raise conflict_error(conflicts)
            merged = merge_applied(current.load_as(target.api_version), applied, rules)
            for path in ownership.abandoned(options.manager, wanted):
                remove(merged, path, rules)
            ownership.take(options.manager, wanted)
            managed = ownership.managed_fields(target.api_version)
            written = self._replace(target, current, merged, options, managed)
        if options.dry_run is WriteMode.NO:
            self._owners[written.record.uid] = ownership
        return written

    def _forget(self, _: Table, change: TableChange) -> None:
        """Discard the ownership of fields of a deleted object."""
        if change.kind == DELETED:
            self._owners.pop(change.record.uid, None)

    def _list_rules(self, target: Target) -> ListRules:
        if not target.kind.custom:
            return builtin_apply_rules
        return schema_rules(self._backend.custom[target.kind.qualified][target.version].schema)

    def _replace(
        self,
        target: Target,
        current: Record,
        document: JsonObject,
        options: WriteOptions,
        managed: Sequence[JsonObject] = (),
    ) -> Written:
        kind = target.kind
        asked = metadata_of(document).get("resourceVersion")
        if asked and asked != str(current.revision):
            raise modified_meanwhile(kind, target.name)
        document, warnings = self._shape(target, document, options)
        old = current.load()
        new = settle(target, old, document)
        if managed:
            metadata_of(new)["managedFields"] = list(managed)
        rules = rules_of(kind.qualified)
        if not target.subresource:
            rules.default(new)
        self._check_valid(target, new)
        _check_finalizers(target, old, new)
        changes = rules.status_causes if target.subresource == "status" else rules.change_causes
        causes = list(changes(old, new)) if target.subresource in ("", "status") else []
        if causes:
            raise invalid(kind, target.name, causes)
        if not target.subresource:
            rules.refresh(new)
        if kind.generation is Generation.COUNTED and desired(kind, old) != desired(kind, new):
            metadata_of(new)["generation"] = (metadata_of(old).get("generation") or 0) + 1
        if new == old:
            return Written(current, WriteOutcome.UNCHANGED, warnings)
        if options.dry_run is WriteMode.ALL:
            return Written(self._backend.unstored(kind, new), WriteOutcome.UPDATED, warnings)
        if self._deleter.is_finished(kind, new):
            return Written(self._deleter.remove(kind, new), WriteOutcome.REMOVED, warnings)
        return Written(self._backend.put(kind, new), WriteOutcome.UPDATED, warnings)

    def _check_identity(self, target: Target, document: JsonObject) -> None:
        """Check apiVersion, kind, namespace and name against the request path.

        Identity fields that the body omits are set.
        """
        kind = target.kind
        if (
            document.setdefault("apiVersion", target.api_version) != target.api_version
            or document.setdefault("kind", kind.kind) != kind.kind
        ):
            given = f"{document['apiVersion']}, Kind={document.get('kind')}"
            raise bad_request(
                f"the object provided is unrecognized (must be of type {kind.kind}): {given}, expected {target.api_version}"
            )
        problem = metadata_type_problem(document.setdefault("metadata", {}))
        if problem:
            raise _undecodable(kind, problem, target.version)
        metadata = document["metadata"]
        if not kind.namespaced:
            metadata.pop("namespace", None)
        namespace = metadata.get("namespace")
        if namespace and namespace != target.namespace:
            why = f"({namespace} is not {target.namespace})"
            raise bad_request(
                f"the namespace of the provided object does not match the namespace sent on the request {why}"
            )
        if target.name and metadata.setdefault("name", target.name) != target.name:
            raise bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
            )

    def _shape(self, target: Target, document: JsonObject, options: WriteOptions) -> tuple[JsonObject, tuple[str, ...]]:
        """Return the document in its storage version with warnings. Custom kinds are pruned and defaulted."""
        kind = target.kind
        if not kind.custom:
            unknown = self._unknown_fields(target, document, options)
            if unknown and options.validation is FieldValidation.STRICT:
                raise _strict(target, unknown)
            stored = without_nulls(convert(document, kind.stored_as))
            problem = shape_problem(kind.qualified, stored)
            if problem:
                raise _undecodable(kind, problem, target.version)
            return stored, tuple(f'unknown field "{path}"' for path in unknown)
        versions = self._backend.custom[kind.qualified]
        unknown = versions[target.version].shape(document)
        if unknown and options.validation is FieldValidation.STRICT:
            raise _strict(target, unknown)
        causes = list(versions[target.version].causes(document))
        if causes:
            raise invalid(kind, metadata_of(document).get("name") or "", causes)
        stored = convert(document, kind.stored_as)
        if kind.stored_as != target.api_version:
            versions[kind.storage_version].shape(stored)
        warned = options.validation is FieldValidation.WARN
        return stored, tuple(f'unknown field "{path}"' for path in unknown) if warned else ()

    @staticmethod
    def _unknown_fields(target: Target, document: JsonObject, options: WriteOptions) -> list[str]:
        """Return the unknown fields of a built-in kind if the client requests validation.

        Clients with the types of the API cannot write unknown fields, so the check is skipped otherwise.
        """
        if not options.validation_asked or options.validation is FieldValidation.IGNORE:
            return []
        return list(unknown_fields(target.kind.group, target.version, target.kind.kind, document))

    def _check_valid(self, target: Target, document: JsonObject) -> None:
        causes = metadata_causes(target.kind, metadata_of(document))
        causes.extend(rules_of(target.kind.qualified).causes(document))
        if causes:
            raise invalid(target.kind, metadata_of(document).get("name") or "", causes)


def _check_finalizers(target: Target, old: JsonObject, new: JsonObject) -> None:
    """Raise 422 for finalizers that are added during deletion (ValidateObjectMetaAccessorUpdate of apimachinery)."""
    if not metadata_of(old).get("deletionTimestamp"):
        return
    known = metadata_of(old).get("finalizers") or ()
    added = [name for name in metadata_of(new).get("finalizers") or () if name not in known]
    if added:
        listed = ", ".join(f'"{name}"' for name in added)
        why = (
            f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}"
        )
        raise invalid(target.kind, target.name, [forbidden_field("metadata.finalizers", why)])


def _strict(target: Target, unknown: Sequence[str]) -> ApiError:
    listed = ", ".join(f'unknown field "{path}"' for path in unknown)
    return _undecodable(target.kind, f"strict decoding error: {listed}", target.version)


def _undecodable(kind: Kind, problem: str, version: str) -> ApiError:
    return bad_request(f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}: {problem}')
