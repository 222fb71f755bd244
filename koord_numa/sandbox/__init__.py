"""An in-memory Kubernetes API server and simulated machines for the demo and the tests; never part of a real deployment."""
