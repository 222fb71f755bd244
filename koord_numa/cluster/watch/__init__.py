"""List and watch: informers, listers, and the resync of what Kopf watches."""
