"""Kinds, their schemas, names and JSON documents."""
