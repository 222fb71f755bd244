"""What is known of one pod of a kubelet-owned node: when it came and left, and what was seen of it meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass

from koord_numa.core.kubelet.bounds import everything
from koord_numa.core.objects.request import Pod, PodRequest


@dataclass(slots=True)
class KnownPod:
    """
    A pod of this node. ``bound`` is when it was first counted and ``left_at`` when it was seen gone, in seconds of the cache's clock.

    ``started``: its node has reported it as running. ``left``: it is gone, and the node's topology may not show that yet. ``judged`` is
    when it was seen to run. ``found``: it ran when it was first seen; the kubelet began with it at ``began`` (seconds since the epoch, 0
    if unknown). ``unordered``: it came while no watch told the order of events. ``coined``: no earlier pod had its name.
    ``ending`` is when it was seen to be deleted, which its kubelet has yet to do. ``cpus`` is how many exclusive ones all of its containers
    ask for. ``had_cpus``: when it was bound the node had as many as it and all others could ever hold.
    """

    uid: str
    namespace: str
    name: str
    request: PodRequest
    bound: float
    started: bool = False
    left: bool = False
    left_at: float = 0.0
    judged: float = 0.0
    found: bool = False
    began: float = 0.0
    created: float = 0.0
    unordered: bool = False
    coined: bool = False
    ending: float | None = None
    cpus: int = 0
    had_cpus: bool = False

    @classmethod
    def of(cls, pod: Pod, now: float) -> "KnownPod":
        """One that was not known before."""
        key, began = pod.key, pod.started_at
        known = cls(key.uid, key.namespace, key.name, pod.request, now, found=pod.started, began=began)
        known.created, known.coined, known.cpus = pod.created, pod.coined, everything(pod.request).cpus
        return known

    @property
    def order(self) -> tuple[int, float, float]:
        """What found pods are sorted by: in the order of their starts, then those on their way; the others came later, in their order."""
        if not self.found:
            return 2, 0.0, 0.0
        return (0, self.began, self.created) if self.started else (1, self.created, 0.0)


def order_is_known(arrived: Sequence[KnownPod]) -> bool:
    """
    Did these pods reach the kubelet in this order, and no other between them?

    Beside pods that are found running there may have been others that have left since, and pods that came while no watch told the order of
    events may have come before or after any other.
    """
    if any(known.unordered for known in arrived) and len(arrived) > 1:
        return False
    return not any(known.found for known in arrived)
