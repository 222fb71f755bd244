"""
Events that are handed over in batches: what comes within a pause is handed over at once.

Theory. Kopf works on an event in a task of its object, and between two events its machinery runs. What the scheduler does with an event
then finds the caches of the processor full of other things and takes three times as long as behind another event of the same kind, and so
do the decision that follows and its request. The first event after a pause is handed over as it comes, so that a pod that comes alone
waits for nothing; those behind it together, in their order.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import kopf

SLICE: Final = 50
"""So many events are handed over before others have their turn: some milliseconds."""

_log = logging.getLogger(__name__)


class EventBatches:
    """Events of one kind on their way to ``hand_over``. A pause of 0 seconds hands over each as it comes."""

    def __init__(self, hand_over: Callable[[kopf.RawEvent], None], pause: float) -> None:
        self._hand_over = hand_over
        self._pause = pause
        self._waiting: deque[kopf.RawEvent] = deque()
        self._next = 0.0  # a time of the loop: before it events wait

    def put(self, event: kopf.RawEvent) -> None:
        """Hand over an event, now or with those that come until the pause is over."""
        if not self._pause:
            self._hand_over(event)
            return
        loop = asyncio.get_running_loop()
        if self._waiting:
            self._waiting.append(event)
        elif loop.time() < self._next:
            self._waiting.append(event)
            loop.call_at(self._next, self._flush)
        else:
            self._next = loop.time() + self._pause
            self._hand_over(event)

    def _flush(self) -> None:
        for _ in range(min(SLICE, len(self._waiting))):
            try:
                self._hand_over(self._waiting.popleft())
            except Exception:  # noqa: BLE001 - contained, as Kopf contains errors of handlers
                _log.exception("an event cannot be handed over")
        loop = asyncio.get_running_loop()
        if self._waiting:
            loop.call_soon(self._flush)
        else:
            self._next = loop.time() + self._pause
