"""Repacking the CPUs of one node (RebindResource): what to move where, and in which order, so that nobody is ever worse off."""
