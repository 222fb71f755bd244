"""The state of a node: its resources, their holders, and free amounts."""
