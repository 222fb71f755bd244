"""A scheduler that runs against a binder which answers after a given time, without an API server."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.value_objects import replace
from koord_numa.engine import Scheduler, Source
from koord_numa.ports import Dependencies
from koord_numa.settings import Settings


@dataclass
class AnsweringBinder:
    """Every bind succeeds after ``seconds``, and the watch shows it at once."""

    seconds: float = 0.0
    scheduler: Scheduler | None = None
    pods: dict[str, Pod] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)  # by uid, when
    on_bound: Callable[[], None] = lambda: None  # # as a field, not a method: tests and figures replace it

    async def bind(self, pod: PodKey, node: str, _annotations: Mapping[str, str]) -> None:
        """Bind, and show it."""
        await asyncio.sleep(self.seconds)
        self.bound[pod.uid] = time.monotonic()
        if self.scheduler is not None:
            # A bound pod is counted when the watch shows it; without that, what was assumed would expire.
            self.scheduler.handlers.bound_pods.observe("MODIFIED", replace(self.pods[pod.uid], node=node))
        self.on_bound()

    async def set_unschedulable(self, _pod: PodKey, _message: str) -> None:
        """The condition is written."""
        await asyncio.sleep(0)


def scheduler_with(binder: AnsweringBinder) -> Scheduler:
    """A scheduler that leads and makes no requests."""
    # Only what the scheduler calls: requests that it should not make would fail with an AttributeError.
    silent: Any = SimpleNamespace(fresh=lambda: True, event=lambda *_, **__: None, node_event=lambda *_, **__: None)
    port: Any = binder
    scheduler = Scheduler(Settings(), Dependencies(port, silent, silent, lambda *_: {}, time.monotonic))
    for source in Source:
        scheduler.synced(source)
    binder.scheduler = scheduler
    return scheduler
