"""
Looks for another acting scheduler of the same scheduler names: one whose Lease is somewhere else, so that no election keeps them apart.

Theory. Every Lease of this project carries a label and the names of the schedulers whose pods its holder places. Two Leases that are both
held and share a name are two leaders, who give away the same CPUs. A Lease counts as held while its holder renews it: at the first look
by its own times, which need clocks that agree to within the lease's duration, and afterwards by whether it changes.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from koord_numa.cluster.client import Api
from koord_numa.cluster.leader_election import LeaseConfig, boot_clock
from koord_numa.cluster.resources import LEASES, Call
from koord_numa.ports import Clock, ClusterError
from koord_numa.wire.names import LEASE_COMPONENT, LEASE_SCHEDULERS

PERIOD: Final = 20.0
"""Seconds between two looks."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rival:
    """Another Lease that is held, and the scheduler names that it shares with ours."""

    namespace: str
    name: str
    holder: str
    scheduler_names: tuple[str, ...]

    def __str__(self) -> str:
        names = ", ".join(self.scheduler_names)
        return f"another scheduler places pods of {names}: {self.holder} holds lease {self.namespace}/{self.name}"


class LeaseConflicts:
    """``run`` looks now and then; ``rivals`` has what it found last. ``found`` is called with each rival once it appears."""

    def __init__(
        self, api: Api, config: LeaseConfig, found: Callable[[Rival], None], clock: Clock = boot_clock
    ) -> None:
        self.rivals: tuple[Rival, ...] = ()
        self._api = api
        self._config = config
        self._found = found
        self._clock = clock
        self._versions: dict[
            tuple[str, str], tuple[str, float]
        ] = {}  # Lease -> resourceVersion, when it was first seen
        self._problem = ""

    async def run(self) -> None:
        """Look until cancelled. Without the right to list Leases nothing is found, which is logged."""
        while True:
            try:
                await self.look()
                self._problem = ""
            except ClusterError as error:
                # Each problem is said once, however often the look is repeated.
                if str(error) != self._problem:
                    self._problem = str(error)
                    _log.warning("a second scheduler would not be noticed: %s", error)
            await asyncio.sleep(PERIOD)

    async def look(self) -> None:
        """List our kind of Lease once. Raises every ``ClusterError`` of a read."""
        selector = "=".join(LEASE_COMPONENT)
        answer = await self._api.send(Call("list", LEASES), params={"labelSelector": selector})
        before = set(self.rivals)
        self.rivals = tuple(rival for raw in answer.get("items") or () if (rival := self._rival(raw)) is not None)
        for rival in self.rivals:
            # Each rival once: an event every 20 s would only repeat it.
            if rival not in before:
                _log.error("%s; CPUs may be given twice", rival)
                self._found(rival)

    def _rival(self, raw: Mapping[str, Any]) -> Rival | None:
        metadata, spec = raw.get("metadata") or {}, raw.get("spec") or {}
        key = (str(metadata.get("namespace", "")), str(metadata.get("name", "")))
        names = str((metadata.get("annotations") or {}).get(LEASE_SCHEDULERS, "")).split(",")
        shared = tuple(name for name in self._config.scheduler_names if name in names)
        holder = str(spec.get("holderIdentity") or "")
        # Our own Lease, a free one, and those of schedulers with other names are no rivals.
        if not shared or not holder or key == (self._config.namespace, self._config.name):
            return None
        return (
            Rival(*key, holder, shared) if self._is_held(key, str(metadata.get("resourceVersion", "")), spec) else None
        )

    def _is_held(self, key: tuple[str, str], version: str, spec: Mapping[str, Any]) -> bool:
        duration = float(spec.get("leaseDurationSeconds") or self._config.duration)
        now = self._clock()
        known = self._versions.get(key)
        if known is None:
            # At the first look only its own times tell how old it is.
            self._versions[key] = (version, now - _age(spec))
        elif known[0] != version:
            self._versions[key] = (version, now)
        return now - self._versions[key][1] < duration


def _age(spec: Mapping[str, Any]) -> float:
    """Seconds since the last renewal by the times that are written there; unlimited when there are none."""
    try:
        renewed = datetime.fromisoformat(str(spec.get("renewTime", "")))
        return max(0.0, (datetime.now(UTC) - renewed).total_seconds())
    except (ValueError, TypeError):
        return float("inf")
