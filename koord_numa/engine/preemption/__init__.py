"""Preemption for pods of higher priority: candidate nodes, victims, evictions."""

from koord_numa.engine.preemption.executor import Executor
from koord_numa.engine.preemption.groups import GroupPlan

__all__ = ["Executor", "GroupPlan"]
