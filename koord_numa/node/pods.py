"""The pods of this node: their allocations, running containers and UIDs, and a watch of them."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import isolation_words
from koord_numa.core.resources import CPU, MILLI, amount
from koord_numa.core.value_objects import replace
from koord_numa.node.api_client import NodeApi, NodeApiError
from koord_numa.node.podresources import RunningContainer
from koord_numa.wire import names

# The fields of a pod that the kubelet's state depends on: its UIDs, and the containers with exclusive CPUs.
#
# Parsed without the models of ``wire``, which would double the agent's memory.

ENDED_PHASES: Final = frozenset({"Succeeded", "Failed"})
_RESIZE_CONDITIONS: Final = frozenset({"PodResizePending", "PodResizeInProgress"})


@dataclass(frozen=True, slots=True)
class BoundPod:
    """
    A pod object of this node.

    ``kubelet_uid`` is the UID in the kubelet's files: for a static pod, the one in the annotation of its mirror pod.
    ``pinned`` are the containers that a static CPU manager gives exclusive CPUs: Guaranteed, with an integral number of
    CPUs.
    """

    namespace: str
    name: str
    uid: str
    kubelet_uid: str
    pinned: frozenset[str] = frozenset()
    ended: bool = False
    deleting: bool = False
    started: bool = False  # the kubelet has reported a container that runs

    @property
    def key(self) -> tuple[str, str]:
        """Return namespace and name."""
        return self.namespace, self.name


def bound_pod(pod: Mapping[str, Any]) -> BoundPod:
    """Parse a pod. Malformed fields count as absent."""
    metadata, status = _object(pod, "metadata"), _object(pod, "status")
    uid = str(metadata.get("uid", ""))
    statuses = status.get("containerStatuses") or ()
    return BoundPod(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=uid,
        kubelet_uid=str(_object(metadata, "annotations").get(names.MIRROR) or uid),
        pinned=frozenset(_pinned(_object(pod, "spec"), status)),
        ended=status.get("phase") in ENDED_PHASES,
        deleting=bool(metadata.get("deletionTimestamp")),
        started=any("running" in (entry.get("state") or {}) for entry in statuses),
    )


def _object(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _pinned(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the containers that podresources must list with CPUs (``guaranteedCPUs`` in the kubelet's cpumanager/policy_static.go)."""
    if status.get("qosClass") != "Guaranteed":
        return
    # Pod-level resources: exclusive CPUs depend on feature gates. Resize: the spec may differ from the amount that the
    # kubelet has admitted.
    resized = status.get("resize") or any(
        condition.get("type") in _RESIZE_CONDITIONS for condition in status.get("conditions") or ()
    )
    if spec.get("resources") or resized:
        return
    # podresources does not list init containers other than sidecars.
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    for container in (*sidecars, *(spec.get("containers") or ())):
        try:
            limit = amount(CPU, _object(_object(container, "resources"), "limits").get(CPU) or 0)
        except (ValueError, TypeError):
            continue
        if limit and limit % MILLI == 0:
            yield str(container.get("name", ""))


# Allocations of a scheduler for the pods of this node, from their ``resource-status`` annotations.
#
# Parsed without the models of ``wire``, which would double the agent's memory. A malformed annotation is a problem of the
# pod and has no effect.

# Finished pods hold nothing, though their object and its annotation exist until garbage collection.
_FINAL: Final = frozenset({"Succeeded", "Failed"})
_MOST_NUMA_NODES: Final = 1024  # as the kernel's MAX_NUMNODES and sysfs.py
_KOORDLET: Final = "koordlet"
KOORDLET_NAMESPACE: Final = "koordinator-system"
"""Namespace of the DaemonSet ``koordlet`` in Koordinator's chart."""


@dataclass(frozen=True, slots=True)
class DecidedContainer:
    """A container in the status of a pod. ``id`` is the runtime's id without scheme, empty before the container is created."""

    name: str
    id: str
    running: bool


@dataclass(frozen=True, slots=True)
class DecidedPod:
    """
    A pod bound to the node, with the allocation of the scheduler.

    ``cpus`` is the allocated cpuset, empty for a pod on shared CPUs. ``amounts`` are the allocated amounts by NUMA node
    in internal units. ``problem`` describes a malformed annotation.
    """

    namespace: str
    name: str
    uid: str
    cpus: CpuSet = EMPTY
    amounts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    koordinator_qos: str = ""
    kube_qos: str = ""
    containers: tuple[DecidedContainer, ...] = ()
    problem: str = ""
    is_koordlet: bool = False
    isolation: frozenset[str] = frozenset()  # words of the annotation cpu-isolation, known or not

    @property
    def exclusive_to_best_effort(self) -> bool:
        """Return whether best-effort pods must avoid its CPUs. True only for LSE, as in koordlet's BE shared pools."""
        return self.koordinator_qos == "LSE"

    @property
    def key(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def numa(self) -> frozenset[int]:
        """Return the NUMA nodes with allocated amounts."""
        return frozenset(self.amounts)


def decided_pod(pod: Mapping[str, Any], koordlet_namespace: str = KOORDLET_NAMESPACE) -> DecidedPod | None:
    """Parse a pod. ``None`` if it is finished and holds nothing."""
    metadata = pod.get("metadata") or {}
    status = pod.get("status") or {}
    # By phase instead of deletion timestamp: terminating containers still run.
    if status.get("phase") in _FINAL:
        return None
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    cpus, problem = EMPTY, ""
    amounts: dict[int, dict[str, int]] = {}
    text = annotations.get(names.RESOURCE_STATUS)
    if text is not None:
        try:
            cpus, amounts = _resource_status(text)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            problem = f"annotation {names.RESOURCE_STATUS}: {error}"
    return DecidedPod(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        cpus=cpus,
        amounts=amounts,
        koordinator_qos=labels.get(names.QOS_CLASS, ""),
        kube_qos=str(status.get("qosClass", "")),
        containers=tuple(_containers(status)),
        problem=problem,
        isolation=isolation_words(annotations.get(names.CPU_ISOLATION, "")),
        is_koordlet=metadata.get("namespace") == koordlet_namespace and _is_of_koordlet(metadata),
    )


def _is_of_koordlet(metadata: Mapping[str, Any]) -> bool:
    """Return whether the DaemonSet koordlet controls the pod. Names and labels prove nothing: any author of pods can set them."""
    return any(
        owner.get("controller") and owner.get("kind") == "DaemonSet" and owner.get("name") == _KOORDLET
        for owner in metadata.get("ownerReferences") or ()
        if isinstance(owner, Mapping)
    )


def _resource_status(text: str) -> tuple[CpuSet, dict[int, dict[str, int]]]:
    """Parse cpuset and amounts by NUMA node. Malformed texts raise ``ValueError``, ``TypeError``, ``AttributeError`` or ``KeyError``."""
    # Koordinator uses Go's encoding/json, which matches names case-insensitively.
    found = _folded(orjson.loads(text) or {})
    cpus = CpuSet.parse(found.get("cpuset") or "")
    amounts: dict[int, dict[str, int]] = {}
    # An entry without `node` is for NUMA node 0, as in Go.
    for entry in map(_folded, found.get("numanoderesources") or ()):
        numa = entry.get("node") or 0
        if not isinstance(numa, int) or not 0 <= numa < _MOST_NUMA_NODES:
            raise ValueError(f"{str(numa)[:40]} is not a NUMA node")
        # Several entries of a NUMA node add up.
        here = amounts.setdefault(numa, {})
        for name, quantity in (entry.get("resources") or {}).items():
            # A negative amount would increase the available amount of others.
            if (held := amount(name, quantity)) < 0:
                raise ValueError(f"{str(quantity)[:40]} of {name[:40]} is negative")
            here[name] = here.get(name, 0) + held
    return cpus, amounts


def _folded(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): item for key, item in value.items() if item is not None}


def _containers(status: Mapping[str, Any]) -> list[DecidedContainer]:
    found = []
    # Init containers run on the cpuset of the pod, sidecars as long as the pod.
    for group in ("initContainerStatuses", "containerStatuses"):
        for entry in status.get(group) or ():
            _, _, container = str(entry.get("containerID") or "").rpartition("://")
            found.append(
                DecidedContainer(str(entry.get("name", "")), container, "running" in (entry.get("state") or {}))
            )
    return found


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
