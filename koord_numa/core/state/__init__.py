"""What a node has, who holds it, and what is free."""
