"""Selection of preemption victims on a node, with NUMA alignment. Pure functions; no pod is evicted here."""
