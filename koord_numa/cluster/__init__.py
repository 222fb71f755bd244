"""The only code that talks to the Kubernetes API: binder, mirror, events and leases."""
