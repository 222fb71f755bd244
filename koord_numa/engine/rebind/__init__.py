"""Execution of RebindResources: a node is locked, planned, and repacked in small conditional steps."""
