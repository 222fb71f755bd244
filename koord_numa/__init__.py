"""A NUMA-aware Kubernetes scheduler: it picks the node and, inside it, the NUMA nodes, CPUs and devices of a pod."""

import os

# The library of NumPy starts a thread per CPU when it is imported. That takes half of the CPU time of the import, and
# the arrays of this package are too small to gain from threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

__version__ = "0.1.0"
