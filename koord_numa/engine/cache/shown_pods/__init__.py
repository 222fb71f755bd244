"""Pods that a topology of a kubelet-owned node shows, derived from its fingerprint and the order of events."""
