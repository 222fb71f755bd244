"""Filters: predicates that decide whether a pod can run on a node."""
