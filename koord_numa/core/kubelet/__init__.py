"""
Would this kubelet admit this pod now, and what would the pod then hold?

``view.kubelet_view(node, topology, holdings)`` gathers what a scheduler can see of one kubelet-owned node, and
``admission.would_admit(request, view)`` answers with a ``KubeletAdmission`` or a ``Rejection``. Underneath, ``admit`` follows
the kubelet's own managers step by step on a node whose configuration is known in full.
"""
