"""Topology hints and the policies that merge them: which NUMA nodes should a pod use?"""
