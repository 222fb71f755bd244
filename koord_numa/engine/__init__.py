"""Scheduling engine: cluster state, queue, and scheduling loop. All I/O goes through ``koord_numa.ports``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from koord_numa.engine.scheduler import Scheduler, Source
    from koord_numa.ports import DELETED, Dependencies

__all__ = ["DELETED", "Dependencies", "Scheduler", "Source"]


def __getattr__(name: str) -> Any:
    """Import the scheduler on use: commands that only count pods need half of the time without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from koord_numa.engine import scheduler

    return getattr(scheduler, name)
