"""Figures of a fleet of kubelet-owned nodes in virtual time."""
