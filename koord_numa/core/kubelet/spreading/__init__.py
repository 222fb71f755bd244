"""CPUs that come from several NUMA nodes: in which shares is not known, as it depends on options, cores and CPU ids."""
