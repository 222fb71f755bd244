"""Cache of the cluster state: nodes, placed and assumed pods, topologies and their lag, volumes, namespaces."""
