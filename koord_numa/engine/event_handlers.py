"""
The pods that want a node: who comes in and is queued, and what has to be forgotten about those who leave. It places nobody.

What it is told is level-based: pods may be shown again, late, or after they have got a node.
"""

from collections.abc import Callable, Iterable

from koord_numa.core.request import Pod
from koord_numa.engine.cache.cache import DELETED
from koord_numa.engine.handle import Handle
from koord_numa.engine.metrics import Wait
from koord_numa.engine.preemption.executor import Executor


class EventHandlers:
    """Keeps ``handle.waiting`` and what hangs on it. ``kick`` is called when there is somebody to try."""

    def __init__(self, handle: Handle, preemption: Executor, kick: Callable[[], None]) -> None:
        self._handle = handle
        self._preemption = preemption
        self._kick = kick
        self._epoch = 0

    def observe(self, event: str | None, pod: Pod) -> None:
        """
        A pod that has no node yet. ``DELETED`` only says that it waits no longer: the server's field selector reports a bound pod
        that way too, so what a pod holds is for others to say.
        """
        handle, uid = self._handle, pod.key.uid
        if event == DELETED or not _wants_node(pod):
            self.leave(uid)
            return
        if uid in handle.cache.node_of and uid not in handle.in_flight:
            return  # bound already; what this source shows is older
        klass = handle.classes.of(pod)
        if klass is None:
            return
        handle.waiting[uid] = pod
        if uid not in handle.waits:
            handle.waits[uid] = Wait(handle.dependencies.clock())
            if pod.nominated and handle.settings.preemption.enabled:
                handle.nominator.observe(event, pod)
        if pod.problem:
            handle.queue.remove(uid)
            handle.conditions.waits(pod.key, f"the pod cannot be understood: {pod.problem}")
            return
        if uid in handle.in_flight:
            return
        is_new = uid not in handle.queue
        verdict = handle.queue.add(pod, klass)
        if verdict is not None:
            handle.conditions.waits(pod.key, handle.messages.last(klass, verdict))
            if is_new:
                self._preemption.consider(pod, klass, verdict)
        self._kick()

    def replace(self, pods: Iterable[Pod]) -> None:
        """These pods have no node and no others."""
        found = {pod.key.uid: pod for pod in pods}
        for uid in [uid for uid in self._handle.waiting if uid not in found]:
            self.leave(uid)
        for pod in found.values():
            self.observe(None, pod)

    def leave(self, uid: str) -> None:
        """The pod wants no node any more, or has got one; one that never waited is no error."""
        self._handle.forget(uid)
        self._preemption.forget(uid)

    def mind_terms(self) -> None:
        """If terms of placed pods have changed, or what they pick: waiting pods may belong to other classes now."""
        epoch = self._handle.cache.index.epoch
        if self._epoch == epoch:
            return
        self._epoch = epoch
        for pod in list(self._handle.waiting.values()):
            self.observe(None, pod)


def _wants_node(pod: Pod) -> bool:
    """Pods with a node, leaving, gated, finished or run by a kubelet on its own are never tried."""
    return not (pod.node or pod.deleting or pod.gated or pod.mirror or pod.finished)
