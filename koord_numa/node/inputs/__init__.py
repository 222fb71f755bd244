"""What the agent reads: the kubelet, its pods and their cgroups, the API server."""
