"""The state behind the verbs: storage, served kinds and schemas of custom kinds, and reading of single objects."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from koord_numa.sandbox.apiserver.errors import ApiError, forbidden, no_such_api, no_such_path, not_found
from koord_numa.sandbox.apiserver.objects.crds import CustomVersion
from koord_numa.sandbox.apiserver.objects.documents import JsonObject
from koord_numa.sandbox.apiserver.objects.kinds import BUILTIN, Kind
from koord_numa.sandbox.apiserver.store.storage import HISTORY, ObjectKey, Record, Storage, Table


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about: a kind in one version and, where given, a namespace, a name and a subresource."""

    kind: Kind
    version: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def api_version(self) -> str:
        """The apiVersion of the request's body and of its answer."""
        return self.kind.api_version(self.version)


class Registry:
    """Served kinds by group and plural name."""

    def __init__(self) -> None:
        """Begins with the built-in kinds."""
        self._kinds: dict[tuple[str, str], Kind] = {(kind.group, kind.plural): kind for kind in BUILTIN}
        self._on_change: list[Callable[[], None]] = []

    def __iter__(self) -> Iterator[Kind]:
        """By group and plural name, so that discovery is stable."""
        return iter([self._kinds[key] for key in sorted(self._kinds)])

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever a kind starts or stops being served."""
        self._on_change.append(callback)

    def add(self, kind: Kind) -> None:
        """Serve a kind, or serve it differently."""
        self._kinds[kind.group, kind.plural] = kind
        self._tell()

    def remove(self, group: str, plural: str) -> None:
        """Stop serving a kind."""
        if self._kinds.pop((group, plural), None) is not None:
            self._tell()

    def find(self, group: str, plural: str) -> Kind | None:
        """The kind of that group and plural name, if it is served."""
        return self._kinds.get((group, plural))

    def served(self, group: str, version: str, plural: str) -> Kind:
        """The kind of a request's path; raises the 404 of an unknown path."""
        kind = self._kinds.get((group, plural))
        if kind is None or version not in kind.versions:
            known = any(other.group == group and version in other.versions for other in self._kinds.values())
            raise no_such_path() if known else no_such_api()
        return kind

    def named(self, qualified: str) -> Kind:
        """The kind called ``pods`` or ``leases.coordination.k8s.io``; raises the 404 of an unknown one."""
        plural, _, group = qualified.partition(".")
        kind = self._kinds.get((group, plural))
        if kind is None:
            raise no_such_path()
        return kind

    def of_object(self, api_version: str, kind_name: str) -> tuple[Kind, str]:
        """The kind and version that an object's ``apiVersion`` and ``kind`` name; raises the 404 of an unknown one."""
        group, _, version = api_version.rpartition("/")
        for kind in self._kinds.values():
            if kind.kind == kind_name and kind.group == group and version in kind.versions:
                return kind, version
        raise no_such_path()

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Group names and their versions, the preferred first."""
        found: dict[str, list[str]] = {}
        for kind in self:
            versions = found.setdefault(kind.group, [])
            versions.extend(version for version in kind.versions if version not in versions)
        return {group: tuple(sorted(versions, key=version_rank)) for group, versions in sorted(found.items())}

    def _tell(self) -> None:
        for callback in self._on_change:
            callback()


def version_rank(version: str) -> tuple[int, int, int, str]:
    """Sorts versions as Kubernetes does: v2, v1, v1beta2, v1beta1, v1alpha1, and names of another form last."""
    rest = version.removeprefix("v")
    for stage, word in ((1, "beta"), (2, "alpha")):
        major, found, minor = rest.partition(word)
        if found and major.isdigit() and minor.isdigit():
            return stage, -int(major), -int(minor), version
    return (0, -int(rest), 0, version) if rest.isdigit() and rest != version else (3, 0, 0, version)


class FieldValidation(Enum):
    """What happens to unknown fields of custom resources: they are always pruned, and told or refused."""

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


class DryRun(Enum):
    """Whether a write stays."""

    NO = ""
    ALL = "All"


class Conflicts(Enum):
    """What server-side apply does where another manager disagrees."""

    REFUSE = "refuse"
    FORCE = "force"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a write is meant. ``validation_asked``: the client names its validation of fields."""

    dry_run: DryRun = DryRun.NO
    manager: str = ""
    validation: FieldValidation = FieldValidation.WARN
    conflicts: Conflicts = Conflicts.REFUSE
    validation_asked: bool = False


class Outcome(Enum):
    """What became of an object."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Written:
    """The object after a write, what became of it, and warnings for the author."""

    record: Record
    outcome: Outcome
    warnings: tuple[str, ...] = ()


class Backend:
    """Objects by target. The verbs that change them are in ``writer``, ``deletion`` and ``pod_verbs``."""

    def __init__(self, history: int = HISTORY) -> None:
        """``history`` is how many changes per kind a watch can start behind."""
        self.storage = Storage(history)
        self.registry = Registry()
        self.custom: dict[str, dict[str, CustomVersion]] = {}  # qualified kind name → version → schema

    def table(self, kind: Kind) -> Table:
        """Where the objects of a kind are."""
        # Not by the kind's own name: both event APIs show the objects of one table.
        return self.storage.table(kind.stored_in)

    def find(self, target: Target) -> Record | None:
        """The object a target names, if it exists."""
        return self.table(target.kind).get(ObjectKey(target.namespace, target.name))

    def get(self, target: Target) -> Record:
        """The object a target names. Raises 404."""
        record = self.find(target)
        if record is None:
            raise not_found(target.kind, target.name)
        return record

    def lookup(self, qualified: str, name: str, namespace: str = "") -> Record | None:
        """An object by its kind's name, such as ``namespaces``, if it exists."""
        return self.storage.table(qualified).get(ObjectKey(namespace, name))

    def put(self, kind: Kind, document: JsonObject) -> Record:
        """Store a document in its final form."""
        return self.storage.put(self.table(kind), document, kind.fields)

    def unstored(self, kind: Kind, document: JsonObject) -> Record:
        """The record a document would become: the answer of a dry run."""
        return Record(document, self.storage.revision, kind.fields)

    def check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        """Raises the 404 of an absent namespace and the 403 of one that is being deleted."""
        if not kind.namespaced:
            return
        record = self.lookup("namespaces", namespace)
        if record is None:
            raise ApiError(
                404, "NotFound", f'namespaces "{namespace}" not found', {"name": namespace, "kind": "namespaces"}
            )
        if record.deleting:
            error = forbidden(
                kind, name, f"unable to create new content in namespace {namespace} because it is being terminated"
            )
            cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated"}
            error.details["causes"] = [{**cause, "field": "metadata.namespace"}]
            raise error

    def kinds_in_use(self) -> Iterator[Kind]:
        """Kinds that are stored under their own name, in the order of discovery."""
        return (kind for kind in self.registry if not kind.table)
