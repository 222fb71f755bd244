"""What runs on a simulated node: kubelet, koordlet, container runtime."""
