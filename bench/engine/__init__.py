"""Figures of the scheduling engine in this process, without an API server."""
