"""What users read on a pod: events, the PodScheduled condition and their sentences."""
