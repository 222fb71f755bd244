"""Waiting for the next change of something that tells of its changes."""

import asyncio


class NextChange:
    """Any number of tasks wait; each ``tell`` lets all go on that wait at this moment."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Return after the next ``tell``."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def tell(self) -> None:
        """Something has changed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
