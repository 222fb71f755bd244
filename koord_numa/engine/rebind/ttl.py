"""
Deletes RebindResources some time after they have ended (``ttlSecondsAfterFinished``), as Kubernetes' TTL controller does with Jobs.

Only the leader deletes, and only the object that it knows: the uid is a precondition. One that cannot be deleted is tried again later.
"""

from logging import getLogger
from typing import Final

from koord_numa.core.objects.rebind_request import RebindRequest
from koord_numa.engine.rebind.context import RebindPorts, rebind_subject
from koord_numa.engine.rebind.controller import RebindController
from koord_numa.engine.scheduler import Scheduler
from koord_numa.ports import ClusterError, Conflict, Gone
from koord_numa.settings import BackoffSettings

log = getLogger(__name__)

LOOK_SECONDS: Final = 1.0
RETRY: Final = BackoffSettings(initial=1.0, max=300.0)


class FinishedRebinds:
    """``run`` looks once a second."""

    def __init__(self, scheduler: Scheduler, controller: RebindController, ports: RebindPorts) -> None:
        self._scheduler = scheduler
        self._controller = controller
        self._ports = ports
        self._failures: dict[str, tuple[int, float]] = {}  # uid -> failures in a row, when the next try is due

    async def run(self) -> None:
        """Delete what is due until cancelled."""
        while True:
            await self._scheduler.dependencies.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Delete every RebindResource whose time is over."""
        known = self._controller.known()
        # Failures of objects that are gone go with them.
        self._failures = {uid: state for uid, state in self._failures.items() if uid in {each.uid for each in known}}
        for request in known:
            with self._scheduler.handle.quarantine.contained(rebind_subject(request)):
                if _is_due(request, self._ports.wall()) and self._may_try(request):
                    await self._delete(request)

    def _may_try(self, request: RebindRequest) -> bool:
        _, due = self._failures.get(request.uid, (0, 0.0))
        dependencies = self._scheduler.dependencies
        return dependencies.lease.fresh() and dependencies.clock() >= due

    async def _delete(self, request: RebindRequest) -> None:
        try:
            await self._ports.writer.delete_rebind(request)
        except (Gone, Conflict):
            return  # another object by now, or none: the watch will tell
        except ClusterError as error:
            failures = self._failures.get(request.uid, (0, 0.0))[0] + 1
            dependencies = self._scheduler.dependencies
            due = dependencies.clock() + RETRY.pause(failures, dependencies.random())
            self._failures[request.uid] = (failures, due)
            log.warning("RebindResource %s cannot be deleted now: %s", request.name, error)


def _is_due(request: RebindRequest, now: float) -> bool:
    return (
        request.is_answered
        and not request.deleting
        and request.ttl is not None
        and bool(request.updated)
        and now >= request.updated + request.ttl
    )
