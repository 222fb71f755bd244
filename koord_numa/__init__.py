"""A NUMA-aware Kubernetes scheduler: it picks the node and, inside it, the NUMA nodes, CPUs and devices of a pod."""

__version__ = "0.1.0"
