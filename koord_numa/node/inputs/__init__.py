"""The inputs of the agent: the kubelet, its pods and their cgroups, the API server."""
