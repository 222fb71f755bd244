"""Dynamic resource allocation: state of claims and devices, the late check of a node, and the PreBind step."""
