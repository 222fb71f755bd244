"""
A model of the kubelet: which pods it admits now, and which CPUs, memory and devices they get.

``view.kubelet_view(node, topology, holdings)`` collects what is known of a node, and ``admission.would_admit(request, view)``
returns a ``KubeletAdmission`` or a ``Rejection``. ``admit.admit`` runs the kubelet's own admission on a known state. Modules
import only modules below them in the contract of pyproject.toml, from ``demand``, ``options`` and ``state`` up to ``admission``.
"""
