"""
Dynamic resource allocation: which devices satisfy the claims of a pod on one node (structured parameters of resource.k8s.io/v1).

``inventory`` holds what drivers publish, ``claim`` what users ask for, ``usage`` what is allocated; ``allocator.allocate`` is the decision.
"""
