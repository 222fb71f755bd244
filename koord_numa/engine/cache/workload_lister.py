"""
What is known of Services and the controllers of pods. Facts only; what they mean for a pod is decided in ``core.fit.default_spread``.

A pod's Services are found by the anchors of their selectors (``term_index``), so a namespace with thousands of them costs a pod nothing.
"""

from collections.abc import Callable, Iterable
from typing import Final

from cachetools import LRUCache

from koord_numa.core.fit.spread import default_selector
from koord_numa.core.objects.constraints import LabelSelector, PodTerm
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.workloads import Workload, WorkloadKey, WorkloadKind
from koord_numa.core.selectors import selects
from koord_numa.engine.cache.term_index import AnchorIndex, anchors_of_pod, anchors_of_term
from koord_numa.ports import DELETED

REMEMBERED_PODS: Final = 8192
"""Of so many sorts of pods (namespace, labels, owner) it is remembered what their workload selects by."""

PodSort = tuple[str, tuple[tuple[str, str], ...], WorkloadKey | None]

OnChange = Callable[[tuple[PodTerm, ...]], None]
"""Hears of selectors that came or went, as terms: pods that one of them picks may be spread otherwise now."""


class WorkloadLister:
    """Told by those who watch these kinds, level-based as all facts."""

    def __init__(self, on_change: OnChange) -> None:
        self._on_change = on_change
        self._known: dict[WorkloadKey, Workload] = {}
        self._services: AnchorIndex[Workload] = AnchorIndex()
        self._selectors: LRUCache[PodSort, LabelSelector | None] = LRUCache(maxsize=REMEMBERED_PODS)

    def observe(self, event: str | None, workload: Workload) -> None:
        """One object came, changed or went."""
        self._tell(self._take(workload.key, None if event == DELETED else workload))

    def replace(self, kind: WorkloadKind, workloads: Iterable[Workload]) -> None:
        """These objects of a kind exist and no others."""
        found = {each.key: each for each in workloads}
        # Those that are gone first, so that their terms are told with the new ones.
        keys = [*(key for key in self._known if key.kind is kind and key not in found), *found]
        self._tell([term for key in keys for term in self._take(key, found.get(key))])

    def selector_for(self, pod: Pod) -> LabelSelector | None:
        """What the workload of a pod selects by; ``None`` when none is known."""
        if not self._known:
            return None
        sort = (pod.key.namespace, pod.labels, pod.controller)
        try:
            return self._selectors[sort]
        except KeyError:
            found = self._selectors[sort] = self._look_up(pod)
            return found

    def _look_up(self, pod: Pod) -> LabelSelector | None:
        labels = dict(pod.labels)
        services = self._services.find(anchors_of_pod(pod.key.namespace, pod.labels))
        # By name: of two Services that select by one label the order does not matter, since both select the pod.
        own = sorted((each for each in services if selects(each.selector, labels)), key=lambda each: each.key.name)
        return default_selector(own, None if pod.controller is None else self._known.get(pod.controller))

    def _take(self, key: WorkloadKey, new: Workload | None) -> list[PodTerm]:
        former = self._known.get(key)
        if former == new:
            return []
        # Both selectors: pods that the old one picked are spread otherwise too.
        terms = [_term(each) for each in (former, new) if each is not None]
        if former is not None:
            self._services.remove(former, anchors_of_term(_term(former)))
            del self._known[key]
        if new is not None:
            self._known[key] = new
            if key.kind is WorkloadKind.SERVICE:
                self._services.add(new, anchors_of_term(_term(new)))
        return terms

    def _tell(self, terms: list[PodTerm]) -> None:
        if terms:
            # All answers at once: which pods a selector touches would cost more to find out.
            self._selectors.clear()
            self._on_change(tuple(terms))


def _term(workload: Workload) -> PodTerm:
    return PodTerm("", workload.selector, (workload.key.namespace,))
