"""The steps of an allocation on a node with scheduler-owned CPUs. ``core/allocate.py`` combines them."""
