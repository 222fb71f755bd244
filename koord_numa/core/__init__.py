"""Pure decisions about nodes, NUMA nodes and CPUs: no I/O, no clock, no randomness, no Kubernetes objects."""
