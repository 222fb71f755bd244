"""Questions to the scheduler about pods and nodes as they are not: nothing is counted, remembered or written."""

from collections.abc import Mapping
from dataclasses import dataclass

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.fit.node_filters import CORDONED, fits_node_affinity, fits_node_name, fits_taints
from koord_numa.core.objects.request import Pod, PodRequest
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.value_objects import replace
from koord_numa.engine.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Remedy:
    """
    One change after which the pod fits on ``node``, verified by the scheduler's rules.

    ``kind`` is ``size``, ``policy``, ``kubelet``, ``node``, ``leaves``, ``eviction``, ``rebind`` or ``repair``. The last one names what has
    to be mended before the node can be judged at all, and is the only kind that is not verified.
    """

    kind: str
    node: str
    text: str


@dataclass(frozen=True, slots=True)
class Probe:
    """One waiting pod, every node's refusal, and the names of the nodes that came closest."""

    scheduler: Scheduler
    pod: Pod
    rejections: Mapping[str, Rejection]
    closest: tuple[str, ...]

    def fits(self, request: PodRequest, node: str) -> Placement | None:
        """The placement that a pod with this request would get on the node now."""
        pod = replace(self.pod, request=request)
        request_class = self.scheduler.classes.of(pod)
        if request_class is None:
            return None
        answer = self.scheduler.handle.selector.try_node(request_class, node, pod)
        return answer if isinstance(answer, Placement) else None

    def may_use(self, node: str) -> bool:
        """Whether the pod may go to the node by its name, labels and taints. A cordon does not count."""
        info = self.scheduler.cache.nodes.get(node)
        if info is None or info.node is None:
            return False
        request = self.pod.request
        open_node = replace(info.node, taints=tuple(taint for taint in info.node.taints if taint.key != CORDONED.key))
        refused = (
            fits_node_name(request, info.node)
            or fits_node_affinity(request, info.node)
            or fits_taints(request, open_node)
        )
        return refused is None

    def fits_on_one(self, request: PodRequest) -> Placement | None:
        """The first of the closest nodes that takes a pod with this request."""
        return next((found for node in self.closest if (found := self.fits(request, node)) is not None), None)


def where(placement: Placement) -> str:
    """``worker-1, NUMA 0``."""
    numa = [numa for numa, _ in placement.numa] or list(CpuSet(placement.mask or 0))
    return f"{placement.node}, NUMA {','.join(map(str, numa))}" if numa else placement.node
