"""Carries RebindResources out: one node at a time is locked, planned and repacked in small conditional steps."""
