"""Preemption for pods of higher priority: candidate nodes, victims, evictions."""
