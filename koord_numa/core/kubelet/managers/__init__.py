"""The kubelet's own managers, as its code has them."""
