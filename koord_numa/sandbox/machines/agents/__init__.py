"""The programs on a simulated node: kubelet, koordlet and container runtime."""
