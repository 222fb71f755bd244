"""Which kinds are served right now: the built-in ones and those of established CustomResourceDefinitions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from koord_numa.sandbox.apiserver.errors import no_such_api, no_such_path
from koord_numa.sandbox.apiserver.objects.kinds import BUILTIN, Kind


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
