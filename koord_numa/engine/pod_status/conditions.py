"""
Tells people what became of a pod: events, and the condition that says why it waits. Only on change, and never in a decision's way.
"""

import asyncio
from dataclasses import dataclass, field
from logging import getLogger
from typing import Final

from koord_numa.core.request import Pod, PodKey
from koord_numa.core.verdicts import Placement
from koord_numa.engine.pod_status.messages import with_remark
from koord_numa.ports import ClusterError, Dependencies, Forbidden, Gone, Invalid

log = getLogger(__name__)

SCHEDULED: Final = "Scheduled"
FAILED: Final = "FailedScheduling"
RETRY_SECONDS: Final = 2.0


@dataclass(slots=True)
class PodConditions:
    """What every waiting pod was told last, and conditions still to be written, oldest first."""

    outside: Dependencies
    _told: dict[str, str] = field(default_factory=dict)
    _remarks: dict[str, str] = field(default_factory=dict)
    _pending: dict[str, tuple[PodKey, str]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        """Conditions not written yet."""
        return len(self._pending)

    def waits(self, pod: PodKey, why: str) -> None:
        """The pod waits: an event and the condition, if it was told something else before. A remark goes with it."""
        why = self.with_remark(pod.uid, why)
        if self._told.get(pod.uid) == why:
            return
        self._told[pod.uid] = why
        self.warn(pod, why)
        self._pending[pod.uid] = (pod, why)
        self._news.set()

    def remark(self, uid: str, text: str) -> bool:
        """What is to be said besides why the pod waits, from the next time on; nothing when empty. Is it anything new?"""
        if self._remarks.get(uid, "") == text:
            return False
        if text:
            self._remarks[uid] = text
        else:
            del self._remarks[uid]
        return True

    def with_remark(self, uid: str, why: str) -> str:
        """The whole message."""
        return with_remark(why, self._remarks.get(uid, ""))

    def warn(self, pod: PodKey, why: str) -> None:
        """Only an event: something went wrong that does not mean that the pod fits nowhere."""
        self.outside.recorder.event(pod, warning=True, reason=FAILED, message=why)

    def placed(self, pod: Pod, placement: Placement) -> None:
        """The pod is bound: where, and with what."""
        message = f"Successfully assigned {pod.key} to {placement.node}{describe_placement(placement)}"
        self.outside.recorder.event(pod.key, warning=False, reason=SCHEDULED, message=message)
        self.forget(pod.key.uid)

    def forget(self, uid: str) -> None:
        """The pod waits no longer."""
        self._told.pop(uid, None)
        self._remarks.pop(uid, None)
        self._pending.pop(uid, None)

    async def run(self) -> None:
        """Write conditions until cancelled. A pod that got news again meanwhile gets only the latest."""
        while True:
            while self._pending:
                uid = next(iter(self._pending))
                await self._write(*self._pending.pop(uid))
            self._news.clear()
            await self._news.wait()

    async def _write(self, pod: PodKey, why: str) -> None:
        if not self.outside.lease.fresh():
            self._pending.setdefault(pod.uid, (pod, why))
            await self.outside.sleep(RETRY_SECONDS)
            return
        try:
            await self.outside.binder.set_unschedulable(pod, why)
        except (Gone, Invalid):
            return
        except Forbidden as error:
            log.warning("conditions cannot be written: the right to %s is missing", error.rule)
        except ClusterError:
            self._pending.setdefault(pod.uid, (pod, why))
            await self.outside.sleep(RETRY_SECONDS)


def describe_placement(placement: Placement) -> str:
    """``: NUMA 0, CPUs 0-3``, and why nothing was aligned where nothing was; empty when there is nothing to say."""
    parts = []
    if placement.mask is not None:
        numa = [str(number) for number in range(placement.mask.bit_length()) if placement.mask >> number & 1]
        parts.append(f"NUMA {', '.join(numa)}")
    if placement.cpus:
        parts.append(f"CPUs {placement.cpus}")
    if placement.note:
        parts.append(placement.note)
    return f": {', '.join(parts)}" if parts else ""
