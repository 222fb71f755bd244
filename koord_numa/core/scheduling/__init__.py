"""Scheduling decision for one pod on a snapshot: feasible nodes, scores, and placements. Pure functions."""
