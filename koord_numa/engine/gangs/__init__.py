"""Scheduling of pod groups: their state, their queue, the trial of a group, and the group cycle."""
