"""What other pods mean for a pending one once some of them are gone. It takes away counts that were made for the whole cluster."""

from collections import Counter
from collections.abc import Sequence

from koord_numa.core.fit.pod_affinity import Namespaces, PodAffinityCounts, pod_affinity_counts
from koord_numa.core.fit.spread import SpreadCounts, spread_counts
from koord_numa.core.fit.storage.volumes import storage_without
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod
from koord_numa.core.scheduling.request import SchedulingRequest
from koord_numa.core.value_objects import replace


def request_without(
    ask: SchedulingRequest, node: Node, gone: Sequence[Pod], namespaces: Namespaces
) -> SchedulingRequest:
    """The ask as it will be when these pods have left this node. Preferences stay as they are: only what must hold is recounted."""
    near, even, storage = ask.neighbours, ask.spread, ask.storage
    # Pods that do not depend on others have nothing to recount.
    if not gone or (near is None and even is None and storage is None):
        return ask
    here = [(node, pod) for pod in gone]
    if near is not None:
        near = _fewer(near, pod_affinity_counts(ask.request, here, namespaces))
    if even is not None:
        even = _less_crowded(even, spread_counts(ask.request, (), here))
    if storage is not None:
        storage = storage_without(storage, node.name, gone)
    return replace(ask, neighbours=near, spread=even, storage=storage)


def _fewer(view: PodAffinityCounts, part: PodAffinityCounts) -> PodAffinityCounts:
    # A difference of Counters drops what is zero; a domain without pods must not look like one with pods.
    return replace(
        view,
        affine=view.affine - part.affine,
        repelled=view.repelled - part.repelled,
        forbidden=view.forbidden - part.forbidden,
    )


def _less_crowded(view: SpreadCounts, part: SpreadCounts) -> SpreadCounts:
    """A domain stays a domain, even when no pod is left in it."""
    counts = {}
    for index, counted in view.counts.items():
        left = Counter(counted)
        left.subtract(part.counts[index])
        counts[index] = left
    return SpreadCounts(counts)
