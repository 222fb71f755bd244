"""The cluster as a command sees it: objects read from the API server or from files, and a snapshot that answers what-if questions."""
