"""
Dynamic resource allocation: devices of one node for the claims of a pod (structured parameters of resource.k8s.io/v1).

``inventory`` holds the devices that drivers publish, ``claim`` the requests of users, ``allocation`` the allocated
devices. ``allocator.allocate`` decides.
"""
