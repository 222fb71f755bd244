"""Pods: what they ask for, and what is written into them."""
