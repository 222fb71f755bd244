"""HTTP: requests, responses, watches and discovery."""
