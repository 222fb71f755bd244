"""
Controller of RebindResources: rebinds of the same node run sequentially, oldest first, and only on the leader.

Level-based: events may be late, repeated or merged. A rebind that ends because the lease was lost restarts when this replica leads again,
unless another replica has finished it.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from koord_numa.core.ordering import age_key
from koord_numa.core.rebind.plan import RebindRequest
from koord_numa.engine.cache.cache import DELETED
from koord_numa.engine.rebind.context import RebindContext, RebindPorts, rebind_subject
from koord_numa.engine.rebind.reconcile import RebindReconciler
from koord_numa.engine.scheduler import Scheduler
from koord_numa.ports import NotLeader

IDLE_SECONDS: Final = 0.2
"""Seconds between checks whether this replica may work."""


class RebindController:
    """
    ``EventHandler`` of RebindResources. ``run`` executes them.

    An exception fails the rebind and is reported in its status. If the status cannot be written, the rebind is not retried until it
    changes.
    """

    def __init__(self, engine: Scheduler, ports: RebindPorts) -> None:
        self._engine = engine
        self._ports = ports
        self._known: dict[str, RebindRequest] = {}
        self._ended: dict[str, int] = {}  # uid -> answered generation, which the watch may not show yet
        self._under_way: set[str] = set()
        self._last: dict[str, asyncio.Task[None]] = {}  # node -> last task of the node, for the next to wait for
        self._news = asyncio.Event()
        self._stopping = False

    def replace(self, objects: Iterable[RebindRequest]) -> None:
        """Replace the known RebindResources by this complete list."""
        found = {request.uid: request for request in objects}
        # The difference is a copy, because ``observe`` changes the dictionary.
        for uid in self._known.keys() - found.keys():
            self.observe(DELETED, self._known[uid])
        for request in found.values():
            self.observe(None, request)

    def observe(self, event: str | None, obj: RebindRequest) -> None:
        """Process the current state of a RebindResource; ``DELETED`` when it is gone."""
        if event == DELETED:
            self._known.pop(obj.uid, None)
            self._ended.pop(obj.uid, None)
            return
        self._known[obj.uid] = obj
        self._news.set()

    def synced(self) -> None:
        """Ignore the end of the first list. Objects are processed as soon as they are observed."""

    def known(self) -> list[RebindRequest]:
        """Return every RebindResource as last observed."""
        return list(self._known.values())

    async def run(self) -> None:
        """Work until ``stop``. Return when all steps in progress are settled."""
        async with asyncio.TaskGroup() as jobs:
            while not self._stopping:
                await self._news.wait()
                self._news.clear()
                if not (self._engine.ready and self._leads()):
                    # Polled, because there is no event for changes of the lease.
                    await self._engine.dependencies.sleep(IDLE_SECONDS)
                    self._news.set()
                    continue
                for request in self._open():
                    self._begin(jobs, request)

    def stop(self) -> None:
        """Start no more rebinds and no more steps."""
        self._stopping = True
        self._news.set()

    def _leads(self) -> bool:
        return not self._stopping and self._engine.dependencies.lease.fresh()

    def _open(self) -> list[RebindRequest]:
        if self._stopping:
            return []
        waiting = (
            request
            for request in self._known.values()
            if request.uid not in self._under_way
            and not request.is_answered
            and not request.deleting
            # The watch may still show the state before the last answer.
            and self._ended.get(request.uid, -1) < request.generation
        )
        return sorted(waiting, key=lambda request: age_key(request.created, request.name))

    def _begin(self, jobs: asyncio.TaskGroup, request: RebindRequest) -> None:
        self._under_way.add(request.uid)
        work = self._work(request, self._last.get(request.node))
        self._last[request.node] = jobs.create_task(work, name=f"rebind {request.name}")

    async def _work(self, request: RebindRequest, before: asyncio.Task[None] | None) -> None:
        uid, moved = request.uid, None
        job = RebindReconciler(
            RebindContext(self._engine, self._ports, request, lambda: uid in self._known, self._leads)
        )
        try:
            with self._engine.handle.quarantine.contained(rebind_subject(request)):
                # Rebinds of a node wait for each other, which the ``Pending`` status reports.
                if before is not None and not before.done():
                    await job.wait()
                    await asyncio.wait({before})
                moved = await job.run()
            # Only while it exists: UIDs of deleted objects must not accumulate.
            if uid in self._known:
                if moved is None:
                    self._ended[uid] = request.generation
                else:
                    # It restarts in the queue of its new node, which the watch may not show yet.
                    self._known[uid] = moved
        except NotLeader:
            pass  # the next leader continues
        finally:
            self._under_way.discard(uid)
            # Unless a later rebind of the node waits for this task.
            if self._last.get(request.node) is asyncio.current_task():
                del self._last[request.node]
            self._news.set()
