"""The only code that talks to the Kubernetes API: informers, binder, writers, events and leases."""
