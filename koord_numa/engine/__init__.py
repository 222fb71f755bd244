"""Scheduling engine: cluster state, queue, and scheduling loop. All I/O goes through ``koord_numa.ports``."""

from koord_numa.engine.cache.cache import DELETED
from koord_numa.engine.scheduler import Scheduler, Source
from koord_numa.ports import Dependencies

__all__ = ["DELETED", "Dependencies", "Scheduler", "Source"]
