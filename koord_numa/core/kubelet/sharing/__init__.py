"""What is near several NUMA nodes, where no exporter says how: devices, and the CPUs of a socket that is aligned as one."""
