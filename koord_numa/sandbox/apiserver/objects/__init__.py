"""Kinds and their schemas, names and documents."""
