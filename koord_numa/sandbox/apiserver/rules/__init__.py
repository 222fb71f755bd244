"""What the API server checks and does for certain kinds."""
