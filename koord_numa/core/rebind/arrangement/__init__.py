"""arrangement."""
