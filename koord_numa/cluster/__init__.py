"""The only package that accesses the Kubernetes API: informers, binder, writers, events and leases."""
