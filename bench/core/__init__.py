"""Figures of pure decisions: CPUs, NUMA nodes, kubelets, rebinds."""
