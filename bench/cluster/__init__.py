"""Figures of processes: schedulers, the node agent, the API server for tests and the page."""
