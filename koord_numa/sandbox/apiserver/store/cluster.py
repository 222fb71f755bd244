"""The server without HTTP: state, verbs, and the namespaces and priority classes of every cluster."""

from typing import Final

from koord_numa.sandbox.apiserver.objects.documents import JsonObject
from koord_numa.sandbox.apiserver.rules.authorization import Authorizer
from koord_numa.sandbox.apiserver.rules.pod_verbs import BudgetController, PodVerbs
from koord_numa.sandbox.apiserver.store.backend import Backend, Target
from koord_numa.sandbox.apiserver.store.deletion import Definitions, Deleter
from koord_numa.sandbox.apiserver.store.reader import Reader
from koord_numa.sandbox.apiserver.store.storage import HISTORY
from koord_numa.sandbox.apiserver.store.writer import Writer

_NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
_PRIORITIES: Final = (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000))


class Cluster:
    """All verbs on a shared state."""

    def __init__(self, history: int = HISTORY) -> None:
        """Create the initial objects. ``history`` is the number of changes per kind that a watch can lag behind."""
        self.backend = Backend(history)
        Definitions(self.backend)
        self.deleter = Deleter(self.backend)
        self.writer = Writer(self.backend, self.deleter)
        self.pods = PodVerbs(self.backend, self.deleter)
        self.reader = Reader(self.backend)
        self.authorizer = Authorizer(self.backend)
        BudgetController(self.backend)
        for name in _NAMESPACES:
            self._seed("namespaces", {"metadata": {"name": name}})
        self._seed("serviceaccounts", {"metadata": {"name": "default"}}, "default")
        for name, value in _PRIORITIES:
            self._seed("priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": value})

    def compact(self) -> int:
        """Discard the history and return the first revision that watches can start from."""
        self.reader.forget_snapshots()
        return self.backend.storage.compact()

    def _seed(self, qualified: str, document: JsonObject, namespace: str = "") -> None:
        kind = self.backend.registry.named(qualified)
        self.writer.create(Target(kind, kind.versions[0], namespace), document)
