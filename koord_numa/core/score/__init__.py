"""Scores: a ranking of the nodes that fit."""
