"""Volumes, claims and what CSI drivers say."""
