"""Which pods a topology of a kubelet-owned node shows, as far as its fingerprint and the order of events tell."""
