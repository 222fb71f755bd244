"""
Read the kubelet until the sources agree: checkpoint files, podresources, and the pods of this node in the API server.

The files are read before podresources and must be unchanged afterwards. An inconsistent reading is repeated in the same
round, then in the next round.
"""

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import Any, Final, Self

from koord_numa.core.objects.node import KubeletCheckpoint
from koord_numa.core.value_objects import replace
from koord_numa.node.api_client import NodeApi, NodeApiError
from koord_numa.node.kubelet_files import (
    STATIC_CPUS,
    KubeletConfigError,
    KubeletFiles,
    KubeletFilesError,
    KubeletFolder,
    KubeletOptions,
    kubelet_options,
    read_kubelet_config,
)
from koord_numa.node.kubelet_state import (
    Contradiction,
    Evidence,
    check_listing,
    check_presence,
    evidence_of,
    exact_state,
    hardware_state,
    is_same_state,
    with_evidence,
)
from koord_numa.node.metrics import AgentMetrics
from koord_numa.node.podresources import PodResources, PodResourcesClient, PodResourcesError, RpcError, read_resources
from koord_numa.node.pods import BoundPod, NodePods
from koord_numa.node.sysfs import Host, Sysfs, SysfsError, read_host

# Periodically read inputs of the agent: hardware, the kubelet's configuration, podresources.
#
# A source that fails keeps its last good value and reports the failure. A change is visible in the next round.

logger = logging.getLogger(__name__)

_CLOSE_WRITE: Final = 0x08
_MOVED_TO: Final = 0x80
_DELETE: Final = 0x200
_EVENTS: Final = _CLOSE_WRITE | _MOVED_TO | _DELETE
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC  # IN_NONBLOCK | IN_CLOEXEC


class FolderWatch:
    """Calls back after changes in these directories while the context lasts. Several changes may cause one call."""

    def __init__(self, folders: Iterable[Path], changed: Callable[[], None]) -> None:
        self._folders = tuple(folders)
        self._changed = changed
        self._descriptor = -1
        self.watching: tuple[Path, ...] = ()

    def __enter__(self) -> Self:
        try:
            library = ctypes.CDLL(None, use_errno=True)
            self._descriptor = library.inotify_init1(_FLAGS)
            if self._descriptor >= 0:
                self.watching = tuple(
                    folder
                    for folder in self._folders
                    if library.inotify_add_watch(self._descriptor, os.fsencode(folder), _EVENTS) >= 0
                )
        except (OSError, AttributeError) as error:  # another operating system
            logger.info("inotify is not available: %s", error)
        if self.watching:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        else:
            logger.info("changes in %s are found by polling", ", ".join(map(str, self._folders)))
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)

    def _read(self) -> None:
        try:
            while os.read(self._descriptor, 1 << 16):
                pass
        except BlockingIOError:
            pass
        self._changed()


HOST_INTERVAL: Final = 60.0
"""Seconds between full reads of sysfs (a few thousand files). The lists of online CPUs and NUMA nodes are read every time."""
KUBELET_INTERVAL: Final = 60.0
ALLOCATABLE_INTERVAL: Final = 10.0
"""Seconds between reads of allocatable resources. They change if a device plugin registers or the kubelet restarts."""

_ONLINE: Final = (("devices", "system", "cpu", "online"), ("devices", "system", "node", "online"))


class HostSource:
    """The machine."""

    def __init__(self, root: Path, clock: Callable[[], float] = monotonic) -> None:
        self._root = root
        self._clock = clock
        self._next = float("-inf")
        self._online: tuple[str | None, ...] = ()
        self._error = ""
        self.value: Host | None = None

    def read(self) -> Host | None:
        """Return the machine as last read, ``None`` if never read. Raises nothing."""
        now = self._clock()
        try:
            sysfs = Sysfs(self._root)
            online = tuple(sysfs.text(*path) for path in _ONLINE)
            # Two small files show whether CPUs or NUMA nodes changed. All other files are read at a longer interval.
            if now >= self._next or online != self._online:
                host = read_host(self._root)
                # Logged once: the warnings of a machine do not change.
                for warning in host.warnings if self.value is None else ():
                    logger.warning("%s", warning)
                self.value, self._online, self._next, self._error = host, online, now + HOST_INTERVAL, ""
        except SysfsError as error:
            # The kernel removes files one by one when a CPU goes offline. The next round reads a complete set.
            if str(error) != self._error:
                logger.error("the machine cannot be read, the last description is kept: %s", error)  # noqa: TRY400  (expected: the sentence says it all)
            self._error = str(error)
        return self.value

    @property
    def failed(self) -> bool:
        """Return whether the last read failed."""
        return bool(self._error)


class KubeletSource:
    """The kubelet's configuration, from its file or from ``/configz`` through the node proxy of the API server."""

    def __init__(
        self, node: str, path: Path | None, api: NodeApi | None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._node = node
        self._path = path
        self._api = api
        self._clock = clock
        self._next = float("-inf")
        self.value: KubeletOptions | None = None

    async def read(self) -> KubeletOptions | None:
        """Return the options as last read, ``None`` if never read. Raises nothing."""
        if self._clock() < self._next or (self._path is None and self._api is None):
            return self.value
        # Set before the request: a kubelet that hangs is not queried again by the next round.
        self._next = self._clock() + KUBELET_INTERVAL
        try:
            if self._path is not None:
                self.value = read_kubelet_config(self._path)
            elif self._api is not None:
                answer = await self._api.get(f"/api/v1/nodes/{self._node}/proxy/configz")
                self.value = kubelet_options(answer)
        except (KubeletConfigError, NodeApiError) as error:
            logger.warning("the kubelet's configuration is not known: %s", error)
            # Seconds. Sooner than after a success, since nothing can be applied without the configuration.
            self._next = self._clock() + 5.0
        return self.value


class ResourcesSource:
    """The allocations of the kubelet."""

    def __init__(self, client: PodResourcesClient, clock: Callable[[], float] = monotonic) -> None:
        self._client = client
        self._clock = clock
        self._next = float("-inf")
        self._allocatable: Any = None
        self._seen: object = None
        self._error = ""
        self.value: PodResources | None = None

    @property
    def socket(self) -> Path:
        """Return the kubelet's socket, which it re-creates on start."""
        return self._client.path

    async def read(self) -> PodResources | None:
        """Return the allocations as last read, ``None`` if never read. Raises nothing."""
        try:
            listed = await self._client.list()
            if self._allocatable is None or self._clock() >= self._next:
                allocatable = await self._client.allocatable()
                self._next = self._clock() + ALLOCATABLE_INTERVAL
                # The result depends on both responses.
                if allocatable != self._allocatable:
                    self._allocatable, self._seen = allocatable, None
            # The order of pods is arbitrary. The response is parsed only after a change.
            seen = sorted(pod.SerializeToString() for pod in listed.pod_resources)
            if seen != self._seen:
                self.value = read_resources(listed, self._allocatable)
                self._seen = seen
            self._error = ""
        except (RpcError, PodResourcesError) as error:
            # Old kubelets have no GetAllocatableResources, and available amounts are then unknown.
            self._allocatable = None
            if str(error) != self._error:
                logger.warning("the kubelet's allocations are not known: %s", error)
            self._error = str(error)
        return self.value

    @property
    def failed(self) -> bool:
        """Return whether the last read failed."""
        return bool(self._error)


PAUSES: Final = (0.05, 0.1, 0.2, 0.3)
"""Seconds before each repetition within a round. Covers an admission (40 ms) and a restart of the kubelet (0.5 s)."""
PATIENCE: Final = 10.0
"""Seconds after which a contradiction counts as permanent: amounts are published again, without the exact state."""
RESTART_WINDOW: Final = 5.0
"""Seconds after the kubelet created its socket during which a list without a pod proves nothing."""
MAX_DROPPED: Final = 256
"""Maximum remembered UIDs of pods that the kubelet no longer lists, until the API server reports their end."""


@dataclass(frozen=True, slots=True)
class KubeletReading:
    """
    A reading of the kubelet. ``options`` are the configuration corrected by evidence.

    ``contradiction`` is empty unless this reading must not be published.
    """

    options: KubeletOptions | None
    resources: PodResources | None = None
    checkpoint: KubeletCheckpoint | None = None
    contradiction: str = ""


class KubeletReader:
    """A reader of the kubelet. ``evidence`` is accumulated since the kubelet started."""

    def __init__(
        self,
        folder: KubeletFolder | None,
        pods: NodePods,
        metrics: AgentMetrics,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._folder = folder
        self._pods = pods
        self._metrics = metrics
        self._clock = clock
        self._socket: tuple[int, int] | None = None
        # Time when the current contradiction was first seen, for missing pods and for the exact state.
        self._missing_since: float | None = None
        self._contradicted_since: float | None = None
        self._files_error = ""
        self._contradiction = ""
        # Sources of the last consistent state: equal sources have the same state. Halves the time of a round without
        # changes.
        self._sources: tuple[object, ...] = ()
        self._last: KubeletCheckpoint | None = None
        self._dropped: dict[
            str, None
        ] = {}  # UIDs that were active before, in the order in which the kubelet dropped them
        self.evidence = Evidence()

    async def read(
        self, host: Host, options: KubeletOptions | None, resources: ResourcesSource | None
    ) -> KubeletReading:
        """Return the current state of the kubelet. An inconsistent reading is repeated for less than a second. Raises nothing."""
        reading = await self._read_once(host, options, resources)
        for pause in PAUSES:
            if not reading.contradiction:
                break
            self._metrics.rereads.inc()
            await asyncio.sleep(pause)
            reading = await self._read_once(host, options, resources)
        self._report(reading)
        return reading

    async def _read_once(
        self, host: Host, options: KubeletOptions | None, source: ResourcesSource | None
    ) -> KubeletReading:
        restarted = self._notice_restart(None if source is None else source.socket)
        files = self._read_files()
        resources = None if source is None else await source.read()
        self._notice(options, evidence_of(files, resources, self.evidence))
        options = with_evidence(options, self.evidence)
        if source is None or source.failed or resources is None:
            # The last state stays published: there is no newer one.
            state = self._last or self._kept(hardware_state(host, options, resources, time()))
            return KubeletReading(options, resources, state)
        bound = self._pods.bound()
        sources = (host, options, resources, files, bound, *self._pods.departed, *self._dropped)
        if self._last is not None and sources == self._sources:
            return KubeletReading(options, resources, self._last)
        try:
            check_listing(resources, bound, static=options is not None and options.cpu_policy == STATIC_CPUS)
            self._check_presence(resources, files, bound, restarted=restarted)
        except Contradiction as contradiction:
            self._sources = ()
            return KubeletReading(options, resources, self._last, str(contradiction))
        try:
            checkpoint = self._checkpoint(host, options, resources, files, bound)
        except Contradiction as contradiction:
            self._sources = ()
            self._contradicted_since = self._since(self._contradicted_since)
            if not self._is_over(self._contradicted_since):
                return KubeletReading(options, resources, self._last, str(contradiction))
            self._warn_once(f"the kubelet's exact state is not published: {contradiction}")
            checkpoint = self._kept(hardware_state(host, options, resources, time()))
        else:
            self._contradicted_since = None
            if self._missing_since is None:
                self._contradiction = ""
        return KubeletReading(options, resources, checkpoint)

    def _check_presence(
        self, resources: PodResources, files: KubeletFiles | None, bound: Sequence[BoundPod], *, restarted: bool
    ) -> None:
        """Raise ``Contradiction`` while a running pod is not listed. After ``PATIENCE`` the list counts as true."""
        try:
            check_presence(resources, files, bound, restarted=restarted)
        except Contradiction as contradiction:
            self._missing_since = self._since(self._missing_since)
            if not self._is_over(self._missing_since):
                raise
            self._warn_once(f"podresources takes precedence: {contradiction}")
        else:
            self._missing_since = None

    def _since(self, before: float | None) -> float:
        return self._clock() if before is None else before

    def _is_over(self, since: float) -> bool:
        return self._clock() - since >= PATIENCE

    def _checkpoint(
        self,
        host: Host,
        options: KubeletOptions | None,
        resources: PodResources,
        files: KubeletFiles | None,
        bound: Sequence[BoundPod],
    ) -> KubeletCheckpoint:
        """Return the checkpoint. Raises ``Contradiction``."""
        departed = (*self._pods.departed, *self._dropped)
        now = time()
        state = hardware_state(host, options, resources, now)
        if files is not None and self._folder is not None:
            state = exact_state(state, files, resources, bound, departed)
            if self._unchanged_signature() != files.signature:
                raise Contradiction("the kubelet's files changed while podresources was read")
            if self._last is not None:
                for uid in sorted(self._last.active - state.active):
                    self._dropped[uid] = None
                while len(self._dropped) > MAX_DROPPED:
                    del self._dropped[next(iter(self._dropped))]
                state = replace(state, gone=state.gone | (self._dropped.keys() - state.active))
        self._sources = (host, options, resources, files, bound, *self._pods.departed, *self._dropped)
        return self._kept(state)

    def _kept(self, state: KubeletCheckpoint) -> KubeletCheckpoint:
        """Return the last published state if only the time differs, so that nothing is written."""
        if self._last is None or not is_same_state(state, self._last):
            self._last = state
        return self._last

    def _read_files(self) -> KubeletFiles | None:
        if self._folder is None:
            return None
        try:
            files = self._folder.read()
        except KubeletFilesError as error:
            if str(error) != self._files_error:
                logger.warning("the kubelet's exact state is not published: %s", error)
            self._files_error = str(error)
            return None
        self._files_error = ""
        return files

    def _unchanged_signature(self) -> object:
        try:
            return None if self._folder is None else self._folder.signature()
        except KubeletFilesError:
            return None

    def _notice_restart(self, socket: Path | None) -> bool:
        """Return whether the kubelet has started within ``RESTART_WINDOW``. A new socket also resets evidence and the last state."""
        if socket is None:
            return False
        try:
            status = socket.stat()
        except OSError:
            return False
        identity = (status.st_ino, status.st_ctime_ns)
        if self._socket is not None and identity != self._socket:
            logger.info("the kubelet has restarted")
            self.evidence = Evidence()
            self._last, self._sources = None, ()
        self._socket = identity
        return time() - status.st_mtime < RESTART_WINDOW

    def _notice(self, options: KubeletOptions | None, found: Evidence) -> None:
        """Add evidence, and log contradictions to the configuration."""
        known, self.evidence = self.evidence, found
        if options is None:
            return
        if found.cpus and not known.cpus and options.cpu_policy != STATIC_CPUS:
            logger.warning(
                "the kubelet's configuration says CPU manager policy %s, but it is static: %s",
                options.cpu_policy,
                found.cpus,
            )
        if found.memory and not known.memory and options.memory_policy != "Static":
            logger.warning(
                "the kubelet's configuration says memory manager policy %s, but it is Static: %s",
                options.memory_policy,
                found.memory,
            )

    def _report(self, reading: KubeletReading) -> None:
        checkpoint = reading.checkpoint
        self._metrics.state_known.set(
            bool(checkpoint is not None and checkpoint.is_exact and not reading.contradiction and not self._files_error)
        )
        if self._files_error:
            self._metrics.errors.labels("kubelet-files").inc()
        if reading.contradiction:
            self._metrics.errors.labels("kubelet-state").inc()
            self._warn_once(f"nothing is published until the kubelet's state is consistent: {reading.contradiction}")

    def _warn_once(self, text: str) -> None:
        if text != self._contradiction:
            logger.warning("%s", text)
        self._contradiction = text
