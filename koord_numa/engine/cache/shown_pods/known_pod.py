"""Observations of one pod of a kubelet-owned node: its bind, start, deletion and departure."""

from collections.abc import Sequence
from dataclasses import dataclass

from koord_numa.core.kubelet.bounds import everything
from koord_numa.core.objects.request import Pod, PodRequest


@dataclass(slots=True)
class KnownPod:
    """
    A pod of this node. Times are seconds of the cache's clock, except ``began`` and ``created``: seconds since the epoch, 0 if unknown.

    ``bound``: time when it was first counted. ``started``: the node has reported it as running, first at ``judged``. ``ending``: time when
    its deletion timestamp was observed. ``left``: it is gone since ``left_at``, and the node's topology may not show that yet.
    ``found``: it ran when it was first observed. ``began``: start time by the kubelet. ``unordered``: it arrived while there was no watch.
    ``coined``: no earlier pod had its name. ``cpus``: exclusive CPUs of all its containers. ``had_cpus``: when it was bound, the node had
    enough CPUs for the maximum of this pod and all other pods together.
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
        """Return the record of a pod that is observed for the first time."""
        key, began = pod.key, pod.started_at
        known = cls(key.uid, key.namespace, key.name, pod.request, now, found=pod.started, began=began)
        known.created, known.coined, known.cpus = pod.created, pod.coined, everything(pod.request).cpus
        return known

    @property
    def order(self) -> tuple[int, float, float]:
        """Sort key: found pods by start time, then found pods that have not started by creation time, then all others."""
        if not self.found:
            return 2, 0.0, 0.0
        return (0, self.began, self.created) if self.started else (1, self.created, 0.0)


def order_is_known(arrived: Sequence[KnownPod]) -> bool:
    """
    Return whether these pods reached the kubelet in this order with no other pod between them.

    Other pods may have run before found pods and have left since. Pods that arrived while there was no watch may be at any position.
    """
    if any(known.unordered for known in arrived) and len(arrived) > 1:
        return False
    return not any(known.found for known in arrived)
