"""
Messages of the podresources API of the kubelet and of the container runtime interface, as far as the node agent uses them.

``make setup`` and every build generate ``*_pb2.py`` from the ``.proto`` files beside this one (``setup.py``).
"""
