"""Predicates: may this pod run on this node? One small file each."""
