"""From a syntax tree to a function."""
