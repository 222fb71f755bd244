"""Objects and their versions: reading, writing, deleting, garbage collection."""
