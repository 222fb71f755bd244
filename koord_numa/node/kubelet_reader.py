"""
Read the kubelet until the sources agree: checkpoint files, podresources, and the pods of this node in the API server.

The files are read before podresources and must be unchanged afterwards. An inconsistent reading is repeated in the same
round, then in the next round.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import Final

from koord_numa.core.objects.node import KubeletCheckpoint
from koord_numa.core.value_objects import replace
from koord_numa.node.bound_pod import BoundPod
from koord_numa.node.inputs.kubelet_config import KubeletOptions
from koord_numa.node.inputs.kubelet_files import STATIC_CPUS, KubeletFiles, KubeletFilesError, KubeletFolder
from koord_numa.node.inputs.podresources import PodResources
from koord_numa.node.inputs.pods import NodePods
from koord_numa.node.inputs.sources import ResourcesSource
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
from koord_numa.node.sysfs import Host

logger = logging.getLogger(__name__)

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
        wall_clock: Callable[[], float] = time,
    ) -> None:
        self._folder = folder
        self._pods = pods
        self._metrics = metrics
        self._clock = clock
        self._wall_clock = wall_clock
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
            state = self._last or self._kept(hardware_state(host, options, resources, self._wall_clock()))
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
            checkpoint = self._kept(hardware_state(host, options, resources, self._wall_clock()))
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
            self._warn_once(f"podresources is believed: {contradiction}")
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
        now = self._wall_clock()
        state = hardware_state(host, options, resources, now)
        if files is not None and self._folder is not None:
            state = exact_state(state, files, resources, bound, departed)
            if self._unchanged_signature() != files.signature:
                raise Contradiction("the kubelet's files changed while podresources was read")
            if self._last is not None:
                self._drop(self._last.active - state.active)
                state = replace(state, gone=state.gone | (self._dropped.keys() - state.active))
        self._sources = (host, options, resources, files, bound, *self._pods.departed, *self._dropped)
        return self._kept(state)

    def _kept(self, state: KubeletCheckpoint) -> KubeletCheckpoint:
        """Return the last published state if only the time differs, so that nothing is written."""
        if self._last is None or not is_same_state(state, self._last):
            self._last = state
        return self._last

    def _drop(self, uids: frozenset[str]) -> None:
        for uid in sorted(uids):
            self._dropped[uid] = None
        while len(self._dropped) > MAX_DROPPED:
            del self._dropped[next(iter(self._dropped))]

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
        return self._wall_clock() - status.st_mtime < RESTART_WINDOW

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
