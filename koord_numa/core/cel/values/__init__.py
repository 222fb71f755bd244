"""Values, their types and the functions on them."""
