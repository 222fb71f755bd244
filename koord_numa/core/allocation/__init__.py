"""The steps of an allocation on a node with scheduler-owned CPUs. ``core/allocation/allocate.py`` combines them."""
