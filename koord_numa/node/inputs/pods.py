"""A watch of the pods of this node: allocations, running containers, and finished pods."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from koord_numa.core.value_objects import replace
from koord_numa.node.bound_pod import BoundPod, bound_pod
from koord_numa.node.decided import KOORDLET_NAMESPACE, DecidedContainer, DecidedPod, decided_pod
from koord_numa.node.inputs.api_client import NodeApi, NodeApiError
from koord_numa.node.inputs.rpc import RunningContainer

logger = logging.getLogger(__name__)

LONGEST_PAUSE: Final = 30.0  # seconds
MAX_DEPARTED: Final = 256
"""Maximum remembered UIDs of departed pods, the newest first. A node usually runs at most 110 pods."""


class NodePods:
    """
    The pods of a node. ``changed`` and ``noticed`` are set on changes, for two waiting tasks.

    ``departed`` are the UIDs of finished and deleted pods, in the order of their departure.
    """

    def __init__(self, api: NodeApi, node: str, koordlet_namespace: str = KOORDLET_NAMESPACE) -> None:
        self._api = api
        self._koordlet_namespace = koordlet_namespace
        self._query = {"fieldSelector": f"spec.nodeName={node}"}
        self._pods: dict[str, DecidedPod] = {}
        self._sorted: tuple[DecidedPod, ...] | None = None
        self._bound: dict[str, BoundPod] = {}  # by uid, every pod object of this node
        self._pages: list[_Parsed] = []  # of a list that is not complete
        self.departed: dict[str, None] = {}
        self.changed = asyncio.Event()
        self.noticed = asyncio.Event()
        self.synced = asyncio.Event()

    def all(self) -> tuple[DecidedPod, ...]:
        """Return the pods that are not finished, by namespace and name."""
        if self._sorted is None:
            self._sorted = tuple(sorted(self._pods.values(), key=lambda pod: (pod.namespace, pod.name, pod.uid)))
        return self._sorted

    def bound(self) -> tuple[BoundPod, ...]:
        """Return every pod object of this node, including finished pods."""
        return tuple(self._bound.values())

    def find(self, uid: str) -> DecidedPod | None:
        """Return the pod with this UID if it is not finished."""
        return self._pods.get(uid)

    def admit(self, pod: Mapping[str, Any]) -> None:
        """
        Add a pod that the runtime shows before the watch. The next event or list of the watch replaces it.

        Without one, ``confirm`` removes it: the runtime may show a pod after the watch has shown its end.
        """
        found = decided_pod(pod, self._koordlet_namespace)
        if found is not None and found.uid and found.uid not in self._pods and found.uid not in self._bound:
            self._pods[found.uid] = found
            self._sorted = None
            self.changed.set()

    async def run(self) -> None:
        """Watch until cancelled. Lists again whenever the watch ends."""
        pause = 1.0
        while True:
            self._pages = []
            try:
                async for kind, value in self._api.watch("/api/v1/pods", self._query):
                    # Only a response resets the back-off: a failing list never gets here.
                    pause = 1.0
                    self.observe(kind, value)
            except NodeApiError as error:
                logger.warning("the pods of this node are not watched: %s", error)
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, pause * 2)

    async def confirm(self) -> None:
        """Forget pods that only the runtime has shown and that the API server does not have. Raises ``NodeApiError``."""
        unconfirmed = self._pods.keys() - self._bound.keys()
        if not unconfirmed:
            return
        listed = await self._api.get("/api/v1/pods", self._query)
        there = {bound_pod(pod).uid for pod in (listed or {}).get("items") or []}
        # The watch may have shown one of them in the meantime.
        if gone := unconfirmed - there - self._bound.keys():
            self._pods = {uid: pod for uid, pod in self._pods.items() if uid not in gone}
            self._sorted = None
            self.changed.set()

    async def relist(self) -> None:
        """List all pods once, without a watch. Raises ``NodeApiError``."""
        listed = await self._api.get("/api/v1/pods", self._query)
        self.observe("LIST", (listed or {}).get("items") or [])

    def observe(self, kind: str, value: Any) -> None:
        """Process an event of the watch, or a page of its first list, of which ``LIST`` is the last one."""
        if kind == "PAGE":
            self._pages += map(self._parse, value)
            return
        before, bound_before = dict(self._pods), dict(self._bound)
        # Compared below: most updates concern fields that the agent does not read, and must not wake a task.
        if kind == "LIST":
            listed, self._pages = [*self._pages, *map(self._parse, value)], []
            self._pods = {found.uid: found for _, found in listed if found is not None}
            self._bound = {bound.uid: bound for bound, _ in listed}
            self.synced.set()
        elif kind == "DELETED":
            uid = str((value.get("metadata") or {}).get("uid", ""))
            self._pods.pop(uid, None)
            self._bound.pop(uid, None)
        elif kind in ("ADDED", "MODIFIED"):
            bound, found = self._parse(value)
            self._bound[bound.uid] = bound
            if found is None:
                self._pods.pop(bound.uid, None)
            else:
                self._pods[found.uid] = found
        if self._pods != before:
            self._sorted = None
            self.changed.set()
        if self._bound != bound_before:
            self._depart(bound_before)
        if self._bound != bound_before or kind == "LIST":
            self.noticed.set()

    def started(self, container: str, running: Iterable[RunningContainer]) -> None:
        """Record that the runtime has started a container. The status of the pod shows it one or two seconds later."""
        # The event has no pod, so the labels of the running containers are used.
        found = next((one for one in running if one.id == container), None)
        pod = self._pods.get(found.pod_uid) if found else None
        if found is None or pod is None or any(one.id == container for one in pod.containers):
            return
        here = DecidedContainer(found.name, container, running=True)
        # The next update of the pod replaces the entry: by then, the kubelet has reported the container.
        self._pods[pod.uid] = replace(pod, containers=(*pod.containers, here))
        self._sorted = None

    def _depart(self, before: Mapping[str, BoundPod]) -> None:
        """Record the pods that finished or disappeared since ``before``."""
        for uid, pod in self._bound.items():
            if pod.ended and not (uid in before and before[uid].ended):
                self.departed[uid] = None
        for uid in before:
            if uid not in self._bound:
                self.departed.setdefault(uid)
        while len(self.departed) > MAX_DEPARTED:
            del self.departed[next(iter(self.departed))]

    def _parse(self, pod: Mapping[str, Any]) -> "_Parsed":
        found = decided_pod(pod, self._koordlet_namespace)
        # Logged once per new state, not per update of the pod.
        if found is not None and found.problem and found != self._pods.get(found.uid):
            logger.warning("pod %s: %s", found.key, found.problem)
        return bound_pod(pod), found


_Parsed = tuple[BoundPod, DecidedPod | None]
