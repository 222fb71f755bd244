"""The waiting document: verdicts of the queue with advice, which is worked out when asked for and kept for a while."""

import asyncio
from collections.abc import Mapping
from typing import Final

from cachetools import TTLCache

from koord_numa.app.debug import waited_seconds
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.engine.queue.request_class import RequestClass
from koord_numa.engine.scheduler import Scheduler
from koord_numa.view.advice import Remedy, advise, plan_in_thread
from koord_numa.view.documents.claims import wanted_claims
from koord_numa.view.documents.waiting import SHAPES, WaitingShape

ADVISED: Final = 20
"""Shapes that get advice in one document, those with most pods first."""

ADVICE_SECONDS: Final = 30.0
"""Advice is kept so long: it tries dozens of changed pods, and plans a rebind."""


class WaitingShapes:
    """One per process."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._advice: TTLCache[RequestClass, tuple[Remedy, ...]] = TTLCache(maxsize=SHAPES, ttl=ADVICE_SECONDS)
        self._lock = asyncio.Lock()

    async def read(self) -> list[WaitingShape]:
        # One reader at a time: a second one would make the same advice again before the first has stored it.
        """All pods that wait, by shape."""
        async with self._lock:
            groups = sorted(self._groups().items(), key=lambda entry: (-len(entry[1]), entry[0].number))
            return [await self._shape(pods, at < ADVISED) for at, (_, pods) in enumerate(groups)]

    async def remedies(self, pod: Pod, rejections: Mapping[str, Rejection]) -> tuple[Remedy, ...]:
        """Advice for one pod."""
        request_class = self._scheduler.classes.of(pod)
        if request_class is None:
            return ()
        if request_class not in self._advice:
            self._advice[request_class] = tuple(await advise(self._scheduler, pod, rejections, plan_in_thread))
        return self._advice[request_class]

    def _groups(self) -> dict[RequestClass, list[Pod]]:
        groups: dict[RequestClass, list[Pod]] = {}
        for pod in self._scheduler.waiting():
            request_class = self._scheduler.classes.of(pod)
            if request_class is not None:
                groups.setdefault(request_class, []).append(pod)
        return groups

    # The oldest stands for its shape: its verdict has been there longest.
    async def _shape(self, pods: list[Pod], advised: bool) -> WaitingShape:
        pods.sort(key=lambda pod: (pod.created, str(pod.key)))
        uid = pods[0].key.uid
        verdict = self._scheduler.queue.verdict(self._scheduler.handle.pending.get(uid))
        # one shape a turn of the loop: decisions come first
        rejections = {} if verdict is None else verdict.rejections
        await asyncio.sleep(0)
        return WaitingShape(
            pods,
            self._scheduler.explain(uid) or pods[0].problem or "no decision yet",
            rejections,
            max(waited_seconds(self._scheduler, pod.key.uid) for pod in pods),
            await self.remedies(pods[0], rejections) if advised and rejections else (),
            wanted_claims(self._scheduler.claims, pods[0]),
        )
