"""HTTP: requests, answers, watches, discovery."""
