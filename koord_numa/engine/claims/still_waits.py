"""Whether a pod surely has no node: asked before anything is taken from it that its kubelet would need."""

from koord_numa.core.objects.request import PodKey
from koord_numa.ports import Dependencies, Gone


async def still_waits(dependencies: Dependencies, pod: PodKey) -> bool:
    """A pod that is gone waits no more: its reservations are taken back by the ResourceClaim controller."""
    return await _has_no_node(dependencies, pod, gone=False)


async def is_nowhere(dependencies: Dependencies, pod: PodKey) -> bool:
    """A pod that is gone is nowhere: what was made for it alone is of no use any more."""
    return await _has_no_node(dependencies, pod, gone=True)


async def _has_no_node(dependencies: Dependencies, pod: PodKey, *, gone: bool) -> bool:
    if not dependencies.lease.fresh():
        return False
    try:
        seen = await dependencies.binder.read_pod(pod)
    except Gone:
        return gone
    return not seen.node
