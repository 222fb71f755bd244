"""Pools, devices, claims and results as values."""
