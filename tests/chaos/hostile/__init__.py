"""Objects that an API server accepts and that mean no good, of every kind that is watched. From one seed."""
