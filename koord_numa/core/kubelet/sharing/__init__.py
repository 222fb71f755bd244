"""Devices that are near several NUMA nodes, where no exporter says which ones these are."""
