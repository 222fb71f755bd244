"""What is known of all nodes as columns, one element a node."""
