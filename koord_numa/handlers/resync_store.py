"""
The roll of one kind: what Kopf has reported, checked now and then against a list.

After a lost connection Kopf shows again what exists and says nothing of what vanished meanwhile. Nor does it say when its first
list is complete. A list of our own settles both. The roll reports; it never asks the API server itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

DELETED: Final = "DELETED"

Report = Callable[[str | None, T], None]
"""Who is told: the event type (``DELETED``, or anything else for an object that exists) and the object."""


class ResyncStore(Generic[T]):
    """Everything of one kind that exists as far as Kopf has told, by a key that identifies an object."""

    def __init__(self, report: Report[T], key: Callable[[T], Hashable]) -> None:
        self._report = report
        self._key = key
        self._present: dict[Hashable, T] = {}
        self._gone: set[Hashable] | None = None  # while a list is on its way: what vanished meanwhile
        self.doubtful = asyncio.Event()
        """Set when Kopf lists again: what vanished meanwhile is still on the roll."""

    def __len__(self) -> int:
        return len(self._present)

    def known(self, key: Hashable) -> T | None:
        """An object as last reported, if it is on the roll."""
        return self._present.get(key)

    def note(self, event: str | None, thing: T) -> None:
        """Kopf reports an object. An event of type ``None`` is part of a list."""
        key = self._key(thing)
        if event == DELETED:
            self.cross_off(key)
        else:
            if event is None and key in self._present:
                self.doubtful.set()
            self._present[key] = thing
        self._report(event, thing)

    def cross_off(self, key: Hashable) -> None:
        """Kopf reports that an object is gone, and everybody else knows that already."""
        self._present.pop(key, None)
        if self._gone is not None:
            self._gone.add(key)

    async def check(self, everything: Callable[[], Awaitable[Iterable[T]]]) -> None:
        """
        Compare with a list that begins now: report what it shows and nobody told us, and as ``DELETED`` what it does not show.

        Whatever Kopf reports while the list is on its way is newer than the list, and stays.
        """
        self.doubtful.clear()
        self._gone = set()
        before = dict(self._present)
        try:
            listed = {self._key(thing): thing for thing in await everything()}
            for key, thing in listed.items():
                if key not in self._present and key not in self._gone:
                    self._present[key] = thing
                    self._report(None, thing)
        finally:
            self._gone = None
        for key, thing in before.items():
            if key not in listed and self._present.get(key) is thing:
                del self._present[key]
                self._report(DELETED, thing)
