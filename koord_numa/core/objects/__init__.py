"""API objects as the core knows them: frozen values without JSON."""
