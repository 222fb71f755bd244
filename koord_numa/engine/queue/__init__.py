"""Pods that wait: active, backing off or unschedulable, by class of request; nominated nodes; and which events wake which pods."""
