"""
Nodes that are being freed: the requests for one node run beside those for others, a bounded number of nodes at a time.

Theory: a plan takes less than a millisecond, the three round trips that carry it out take many. So the next pod is planned for while nodes
are being freed for others, as kube-scheduler does (``prepareCandidateAsync``). A plan that wants to
look at a node which is being freed waits for it, so that each victim is counted once, and every plan sees what it would see if there were
one preemption at a time.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

NODES: Final = 16
"""So many nodes are freed at a time."""


class NodesBeingFreed:
    """One task a node. What it runs handles its own errors."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, node: str) -> bool:
        return node in self._tasks

    async def start(self, node: str, free: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Begin as soon as it is this node's turn; returns when it has begun."""
        while node in self._tasks or len(self._tasks) >= NODES:
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        self._tasks[node] = asyncio.create_task(self._run(node, free))

    async def wait_for(self, node: str) -> None:
        """Return when the node is not being freed (any more)."""
        while (task := self._tasks.get(node)) is not None:
            await asyncio.wait([task])

    async def settled(self) -> None:
        """Return when no node is being freed."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def cancel(self) -> None:
        """Stop at once. An eviction that was asked for may still happen."""
        for task in (tasks := list(self._tasks.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def _run(self, node: str, free: Callable[[], Coroutine[Any, Any, object]]) -> None:
        # Here and not in a callback of the task: when the task has ended, its node is free.
        try:
            await free()
        finally:
            del self._tasks[node]
