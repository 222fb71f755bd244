"""
Writer of the status of PodGroups. Statuses are written asynchronously, and only if they have changed.

``PodGroupInitiallyScheduled=True`` is final: the status of a group that was scheduled once is not written again.
"""

import asyncio
from collections import OrderedDict
from logging import getLogger
from typing import Final

from koord_numa.core.gangs.model import GangKey, GroupStatus, PodGroup
from koord_numa.core.value_objects import MutableObject, value_field
from koord_numa.engine.gangs.pod_groups import PodGroups
from koord_numa.ports import ClusterError, Dependencies, Forbidden, Gone, Invalid

log = getLogger(__name__)

SCHEDULED: Final = "Scheduled"
UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULER_ERROR: Final = "SchedulerError"
RETRY_SECONDS: Final = 2.0


class GroupStatuses(MutableObject):
    """
    Writer of group statuses. ``_due`` are the statuses to be written, the oldest first.

    ``_told`` has the last written status by gang: the UID of the PodGroup, the reason, and the first clause of the message.
    """

    groups: PodGroups
    dependencies: Dependencies
    _due: OrderedDict[GangKey, GroupStatus] = value_field(default_factory=OrderedDict)
    _told: dict[GangKey, tuple[str, str, str]] = value_field(default_factory=dict)
    _news: asyncio.Event = value_field(default_factory=asyncio.Event)

    def tell(self, key: GangKey, status: GroupStatus) -> None:
        """Schedule the write of this status if the gang has a PodGroup with another status."""
        group = self.groups.objects.get(key)
        if group is None or group.satisfied or self.dependencies.pod_groups is None:
            return
        known = self._told.get(key)
        if known is not None and known[0] == group.uid and (known[1] == SCHEDULED or known[1:] == _essence(status)):
            return
        self._due[key] = status
        self._news.set()

    def tell_all(self) -> None:
        """
        Report every gang that has its minimal count as scheduled, also if another scheduler bound members. Called once a second.

        A PodGroup that cannot be used is reported if pods of this scheduler wait for it.
        """
        for key, group in self.groups.objects.items():
            if group.spec.problem and self.groups.gang(key).pending:
                self.tell(key, GroupStatus(SCHEDULER_ERROR, group.spec.problem))
            elif not group.satisfied and (gang := self.groups.gang(key)).satisfied:
                count = len(gang.scheduled)
                self.tell(key, GroupStatus(SCHEDULED, f"minCount ({group.spec.min_count}) is satisfied", count))

    async def run(self) -> None:
        """Write statuses until cancelled."""
        while True:
            while self._due:
                key, status = self._due.popitem(last=False)
                group = self.groups.objects.get(key)
                if group is not None and not await self._write(group, status):
                    self._due.setdefault(key, status)
                    await self.dependencies.sleep(RETRY_SECONDS)
            self._forget_gone()
            self._news.clear()
            await self._news.wait()

    async def _write(self, group: PodGroup, status: GroupStatus) -> bool:
        """Write a status. Return false if the write must be retried."""
        writer = self.dependencies.pod_groups
        if writer is None:
            return True
        try:
            if not self.dependencies.lease.fresh():
                return False
            await writer.write_status(group, status)
        except (Gone, Invalid):
            return True
        except Forbidden as error:
            log.warning("the status of PodGroup %s cannot be written: missing permission: %s", group.key, error.rule)
            return True
        except ClusterError as error:
            log.debug("the status of PodGroup %s cannot be written now: %s", group.key, error)
            return False
        self._told[group.key] = (group.uid, *_essence(status))
        return True

    def _forget_gone(self) -> None:
        for key in [key for key in self._told if key not in self.groups.objects]:
            del self._told[key]


def _essence(status: GroupStatus) -> tuple[str, str]:
    """Return the parts whose change causes a write: the reason, and the first clause without the numbers of nodes."""
    return status.reason, status.message.partition(";")[0]
