"""The writers of the engine's ports."""
