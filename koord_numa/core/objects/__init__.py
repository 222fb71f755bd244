"""API objects of the core: frozen values without JSON."""
