"""Parse Pods, and write their annotations."""
