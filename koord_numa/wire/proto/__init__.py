"""
Messages of the kubelet's podresources API and of the container runtime interface, reduced to the needs of the node agent.

``make setup`` and every build generate ``*_pb2.py`` from the ``.proto`` files in this directory (``setup.py``).
"""
