"""Scores: which of the nodes that fit is best?"""
