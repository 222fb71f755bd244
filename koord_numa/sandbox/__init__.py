"""An in-memory Kubernetes API server and simulated machines for the demo and the tests. Not for real deployments."""
