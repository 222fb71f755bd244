"""Repacking the CPUs of one node (RebindResource): what to move where, and in which order, so that no pod is ever worse off."""
