"""The server without HTTP: state and verbs, wired together, with the namespaces and priorities every cluster has."""

from typing import Final

from koord_numa.sandbox.apiserver.objects.documents import JsonObject
from koord_numa.sandbox.apiserver.rules.authorization import Authorizer
from koord_numa.sandbox.apiserver.rules.pod_verbs import Budgets, PodVerbs
from koord_numa.sandbox.apiserver.store.backend import Backend, Target
from koord_numa.sandbox.apiserver.store.deletion import Definitions, Deleter
from koord_numa.sandbox.apiserver.store.reader import Reader
from koord_numa.sandbox.apiserver.store.storage import HISTORY
from koord_numa.sandbox.apiserver.store.writer import Writer

_NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
_PRIORITIES: Final = (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000))


class Cluster:
    """All verbs on one state."""

    def __init__(self, history: int = HISTORY) -> None:
        """``history`` is how many changes per kind a watch can start behind."""
        self.backend = Backend(history)
        Definitions(self.backend)
        self.deleter = Deleter(self.backend)
        self.writer = Writer(self.backend, self.deleter)
        self.pods = PodVerbs(self.backend, self.deleter)
        self.reader = Reader(self.backend)
        self.authorizer = Authorizer(self.backend)
        Budgets(self.backend)
        for name in _NAMESPACES:
            self._seed("namespaces", {"metadata": {"name": name}})
        self._seed("serviceaccounts", {"metadata": {"name": "default"}}, "default")
        for name, value in _PRIORITIES:
            self._seed("priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": value})

    def compact(self) -> int:
        """Forget all history; returns the revision from which on there is one."""
        self.reader.forget_snapshots()
        return self.backend.storage.compact()

    def _seed(self, qualified: str, document: JsonObject, namespace: str = "") -> None:
        kind = self.backend.registry.named(qualified)
        self.writer.create(Target(kind, kind.versions[0], namespace), document)
