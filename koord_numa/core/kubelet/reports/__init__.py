"""What published topologies say of the states that a kubelet may be in."""
