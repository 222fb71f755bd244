"""Which node is best for a pod, found without asking every node: bounds on scores over columns of nodes."""
