"""Nodes and their topologies."""
