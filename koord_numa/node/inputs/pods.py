"""The pods of this node, watched: what was decided for them, which containers run, and which pods have ended."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from koord_numa.core.value_objects import replace
from koord_numa.node.bound_pod import BoundPod, bound_pod
from koord_numa.node.decided import KOORDLET_NAMESPACE, DecidedContainer, DecidedPod, decided_pod
from koord_numa.node.inputs.api_client import ApiError, NodeApi
from koord_numa.node.inputs.rpc import RunningContainer

logger = logging.getLogger(__name__)

LONGEST_PAUSE: Final = 30.0  # seconds
MAX_DEPARTED: Final = 256
"""Uids of ended pods that are remembered, the newest ones. A node of the usual size runs 110 pods."""


class NodePods:
    """
    Keeps the pods. ``changed`` is set whenever one of them has changed, and so is ``noticed``, for a second task that waits.

    ``departed`` are the uids of pods that have ended or were deleted, in the order in which that was seen.
    """

    def __init__(self, api: NodeApi, node: str, koordlet_namespace: str = KOORDLET_NAMESPACE) -> None:
        self._api = api
        self._koordlet_namespace = koordlet_namespace
        self._query = {"fieldSelector": f"spec.nodeName={node}"}
        self._pods: dict[str, DecidedPod] = {}
        self._sorted: tuple[DecidedPod, ...] | None = None
        self._bound: dict[str, BoundPod] = {}  # by uid, every pod object of this node
        self.departed: dict[str, None] = {}
        self.changed = asyncio.Event()
        self.noticed = asyncio.Event()
        self.synced = asyncio.Event()

    def all(self) -> tuple[DecidedPod, ...]:
        """The pods that have not ended, by namespace and name."""
        if self._sorted is None:
            self._sorted = tuple(sorted(self._pods.values(), key=lambda pod: (pod.namespace, pod.name, pod.uid)))
        return self._sorted

    def bound(self) -> tuple[BoundPod, ...]:
        """Every pod object of this node, ended ones included."""
        return tuple(self._bound.values())

    def find(self, uid: str) -> DecidedPod | None:
        """The pod with this uid, if it has not ended."""
        return self._pods.get(uid)

    def admit(self, pod: Mapping[str, Any]) -> None:
        """The runtime shows a pod before the watch does; the next event or list of the watch replaces it."""
        found = decided_pod(pod, self._koordlet_namespace)
        if found is not None and found.uid and found.uid not in self._pods:
            self._pods[found.uid] = found
            self._sorted = None
            self.changed.set()

    async def run(self) -> None:
        """Watch until cancelled; lists again whenever the watch ends."""
        pause = 1.0
        while True:
            try:
                async for kind, value in self._api.watch("/api/v1/pods", self._query):
                    # Only an answer ends the back-off: a list that fails never gets here.
                    pause = 1.0
                    self.observe(kind, value)
            except ApiError as error:
                logger.warning("the pods of this node are not watched: %s", error)
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, pause * 2)

    async def relist(self) -> None:
        """Read all pods once, instead of watching. Raises ``ApiError``."""
        listed = await self._api.get("/api/v1/pods", self._query)
        self.observe("LIST", (listed or {}).get("items") or [])

    def observe(self, kind: str, value: Any) -> None:
        """One event of the watch, or its first list."""
        before, bound_before = dict(self._pods), dict(self._bound)
        # Compared at the end, as most updates are of fields that the agent does not read and must wake nothing.
        if kind == "LIST":
            self._pods, self._bound = {}, {}
            for pod in value:
                self._count(pod)
            self.synced.set()
        elif kind == "DELETED":
            uid = str((value.get("metadata") or {}).get("uid", ""))
            self._pods.pop(uid, None)
            self._bound.pop(uid, None)
        elif kind in ("ADDED", "MODIFIED"):
            self._count(value)
        if self._pods != before:
            self._sorted = None
            self.changed.set()
        if self._bound != bound_before:
            self._depart(bound_before)
        if self._bound != bound_before or kind == "LIST":
            self.noticed.set()

    def started(self, container: str, running: Iterable[RunningContainer]) -> None:
        """The runtime has started a container; the pod's status will show it a second or two later."""
        # The event has an id and no pod, so the runtime is asked for its labels.
        found = next((one for one in running if one.id == container), None)
        pod = self._pods.get(found.pod_uid) if found else None
        if found is None or pod is None or any(one.id == container for one in pod.containers):
            return
        here = DecidedContainer(found.name, container, running=True)
        # The pod's next update replaces the entry: by then the kubelet has reported the same container.
        self._pods[pod.uid] = replace(pod, containers=(*pod.containers, here))
        self._sorted = None

    def _depart(self, before: Mapping[str, BoundPod]) -> None:
        """Remember the pods that have ended or disappeared since."""
        for uid, pod in self._bound.items():
            if pod.ended and not (uid in before and before[uid].ended):
                self.departed[uid] = None
        for uid in before:
            if uid not in self._bound:
                self.departed.setdefault(uid)
        while len(self.departed) > MAX_DEPARTED:
            del self.departed[next(iter(self.departed))]

    def _count(self, pod: Mapping[str, Any]) -> None:
        bound = bound_pod(pod)
        self._bound[bound.uid] = bound
        found = decided_pod(pod, self._koordlet_namespace)
        if found is None:
            self._pods.pop(str((pod.get("metadata") or {}).get("uid", "")), None)
            return
        # Told once for each new state, not for each update of the pod.
        if found.problem and found != self._pods.get(found.uid):
            logger.warning("pod %s: %s", found.key, found.problem)
        self._pods[found.uid] = found
