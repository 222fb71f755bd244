"""Topology hints and the policies that merge them to the NUMA nodes of a pod."""
