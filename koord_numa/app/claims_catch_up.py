"""
Lists ResourceClaims again when this process begins to lead: the leader before may have allocated devices that no watch has shown yet.

Two claims with one device do not conflict in the API server, so no write would notice it. Only pods with claims wait for the list: a
cluster may refuse it for as long as it likes.
"""

import asyncio
from typing import Any

from koord_numa.cluster.watch.informer import Informer
from koord_numa.engine.claims.lister import ClaimLister


class ClaimsCatchUp:
    """``informer`` is ``None`` where claims are switched off."""

    def __init__(self, informer: Informer[Any] | None, lister: ClaimLister) -> None:
        self._informer = informer
        self._lister = lister
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Let pods with claims wait until a list that begins now is complete."""
        if self._informer is None:
            return
        self.stop()
        self._lister.lags(may_lag=True)
        self._task = asyncio.create_task(self._relist(self._informer), name="relist of ResourceClaims")

    def stop(self) -> None:
        """Wait for the list no longer."""
        if self._task is not None:
            self._task.cancel()

    async def _relist(self, informer: Informer[Any]) -> None:
        await informer.refresh()
        self._lister.lags(may_lag=False)
