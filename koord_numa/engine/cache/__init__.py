"""What is known of the cluster: nodes, placed and assumed pods, topologies and how far they lag, volumes, namespaces."""
