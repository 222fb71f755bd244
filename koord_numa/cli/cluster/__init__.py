"""Cluster access of commands: objects from the API server or from files, and a snapshot for what-if questions."""
