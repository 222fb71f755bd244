"""Devices: slices, classes and claims of dynamic resource allocation."""
