"""Making room for a pod of higher priority: candidate nodes, victims, evictions."""
