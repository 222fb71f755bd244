"""What is known of namespaces. Facts only; which terms a namespace's labels meet is decided in ``core.fit.pod_affinity``."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from koord_numa.core.objects.workloads import Namespace
from koord_numa.engine.cache.pod_index import PodIndex
from koord_numa.ports import DELETED


@dataclass(slots=True)
class NamespaceLister:
    """Told by those who watch namespaces, level-based as all facts. ``on_change`` hears only of what is news."""

    placed: PodIndex
    on_change: Callable[[], None]

    def observe(self, event: str | None, namespace: Namespace) -> None:
        """A namespace came, had its labels changed, or went."""
        if self.placed.label_namespace(namespace.name, None if event == DELETED else namespace.labels):
            self.on_change()

    def replace(self, namespaces: Iterable[Namespace]) -> None:
        """These namespaces exist and no others."""
        found = {namespace.name: namespace.labels for namespace in namespaces}
        # Deletions first, so that a namespace of the same name is new afterwards.
        names = [*(name for name in self.placed.namespaces if name not in found), *found]
        news = [self.placed.label_namespace(name, found.get(name)) for name in names]
        if any(news):
            self.on_change()
