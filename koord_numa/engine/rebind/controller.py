"""
Where RebindResources come in: each is worked on once, those of one node one after the other, oldest first, and only by the leader.

Level-based: events may come late, repeated or merged. A rebind that ends because the lease was lost is begun again when this replica
leads again, unless another one has ended it.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from koord_numa.core.objects.rebind_request import RebindRequest
from koord_numa.core.ordering import age_key
from koord_numa.engine.cache.cache import DELETED
from koord_numa.engine.rebind.context import RebindContext, RebindPorts, rebind_subject
from koord_numa.engine.rebind.reconcile import RebindReconciler
from koord_numa.engine.scheduler import Scheduler
from koord_numa.ports import NotLeader

IDLE_SECONDS: Final = 0.2
"""Between looks whether this replica may work now."""


class RebindController:
    """
    An ``EventHandler`` of RebindResources; ``run`` works on what they ask for.

    A rebind on which an exception is raised has failed, and says so; if that cannot be said either, it is left alone until it changes.
    """

    def __init__(self, engine: Scheduler, ports: RebindPorts) -> None:
        self._engine = engine
        self._ports = ports
        self._known: dict[str, RebindRequest] = {}
        self._ended: dict[str, int] = {}  # uid -> the generation that was answered, which the watch may not show yet
        self._under_way: set[str] = set()
        self._last: dict[str, asyncio.Task[None]] = {}  # node -> the rebind to wait for
        self._news = asyncio.Event()
        self._stopping = False

    def replace(self, objects: Iterable[RebindRequest]) -> None:
        """These RebindResources exist and no others."""
        found = {request.uid: request for request in objects}
        # A copy of the difference: ``observe`` changes what is iterated.
        for uid in self._known.keys() - found.keys():
            self.observe(DELETED, self._known[uid])
        for request in found.values():
            self.observe(None, request)

    def observe(self, event: str | None, obj: RebindRequest) -> None:
        """A RebindResource as it is now; ``DELETED`` when it is gone."""
        if event == DELETED:
            self._known.pop(obj.uid, None)
            self._ended.pop(obj.uid, None)
            return
        self._known[obj.uid] = obj
        self._news.set()

    def synced(self) -> None:
        """Every RebindResource has been told. Nothing waits for it: each is worked on when it is seen."""

    def known(self) -> list[RebindRequest]:
        """Every RebindResource, as last seen."""
        return list(self._known.values())

    async def run(self) -> None:
        """Work until ``stop``; returns when the steps under way are settled."""
        async with asyncio.TaskGroup() as jobs:
            while not self._stopping:
                await self._news.wait()
                self._news.clear()
                if not (self._engine.ready and self._leads()):
                    # Polled, as losing and winning the lease is no event here.
                    await self._engine.dependencies.sleep(IDLE_SECONDS)
                    self._news.set()
                    continue
                for request in self._open():
                    self._begin(jobs, request)

    def stop(self) -> None:
        """Begin no rebind and no step any more."""
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
            # The watch may still show what was answered a moment ago.
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
                # Rebinds of one node wait for each other; its ``Pending`` says so.
                if before is not None and not before.done():
                    await job.wait()
                    await asyncio.wait({before})
                moved = await job.run()
            # Only while it exists: a uid that is gone must not be remembered for ever.
            if uid in self._known:
                if moved is None:
                    self._ended[uid] = request.generation
                else:
                    # It begins again in the line of the node that it names by now, which the watch may not show yet.
                    self._known[uid] = moved
        except NotLeader:
            pass  # a pod that leads next goes on
        finally:
            self._under_way.discard(uid)
            # Only if no later rebind of the node waits behind this one.
            if self._last.get(request.node) is asyncio.current_task():
                del self._last[request.node]
            self._news.set()
