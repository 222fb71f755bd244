"""List and watch: informers, listers, and the resync of resources that Kopf watches."""
