"""Preemption: whom a pod may displace on a node so that it fits there with its NUMA wishes met. Pure; it evicts no pod."""
