"""Dynamic resource allocation in the cycle: what is known of claims and devices, the late check of a node, the PreBind step."""
