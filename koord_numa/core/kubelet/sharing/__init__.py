"""What several NUMA nodes have together, where no exporter says which ones these are: devices near them, CPUs of their socket."""
