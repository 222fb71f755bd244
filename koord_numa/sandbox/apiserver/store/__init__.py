"""Stored objects and their versions: reading, writing, deletion and garbage collection."""
