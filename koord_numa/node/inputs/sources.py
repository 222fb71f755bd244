"""
Periodically read inputs of the agent: hardware, the kubelet's configuration, podresources.

A source that fails keeps its last good value and reports the failure. A change is visible in the next round.
"""

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import Any, Final, Self

from koord_numa.node.inputs.api_client import NodeApi, NodeApiError
from koord_numa.node.inputs.kubelet_config import (
    KubeletConfigError,
    KubeletOptions,
    kubelet_options,
    read_kubelet_config,
)
from koord_numa.node.inputs.podresources import PodResources, PodResourcesError, read_resources
from koord_numa.node.inputs.rpc import PodResourcesClient, RpcError
from koord_numa.node.sysfs import Host, Sysfs, SysfsError, read_host

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
                logger.error("the machine cannot be read, its last description stays: %s", error)  # noqa: TRY400  (expected: the sentence says it all)
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
