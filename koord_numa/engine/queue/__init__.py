"""Pods that wait: active, backing off or unschedulable, by class of request; and nominated nodes."""
