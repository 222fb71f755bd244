"""
A model of the kubelet: which pods it admits now, and which CPUs, memory and devices they get.

Other packages import the names of this module only. ``KubeletHistory`` records the events of one node and derives from them what is known
of its kubelet. ``would_admit(request, view)`` returns a ``KubeletAdmission`` or a ``Rejection``. ``admit_pod`` runs the kubelet's own
admission on a known state. Modules import only modules below them in the contract of pyproject.toml, from ``demand`` and ``state`` up to
``prediction`` and ``history``.
"""

from koord_numa.core.kubelet.admit import NotAdmitted, admit_pod
from koord_numa.core.kubelet.bounds import NOT_SURELY_ALIGNED, Aligner, aligner, refuse_unsure
from koord_numa.core.kubelet.demand import OUT_OF, REASONS, PodDemand, check_node_fit, pod_demand
from koord_numa.core.kubelet.history import KubeletHistory, NodePods
from koord_numa.core.kubelet.prediction import refuse_exploration, would_admit
from koord_numa.core.kubelet.shown_pods import Reading
from koord_numa.core.kubelet.state import (
    STEP_COUNT,
    ContainerGrant,
    DevicePool,
    KubeletNode,
    KubeletState,
    PluginDevice,
    free_on,
)
from koord_numa.core.kubelet.view import (
    KubeletView,
    core_rule_of,
    known_of,
    refuse_promises,
    refuse_unpinned,
    unknown_words,
    view_after_eviction,
)

__all__ = [
    "NOT_SURELY_ALIGNED",
    "OUT_OF",
    "REASONS",
    "STEP_COUNT",
    "Aligner",
    "ContainerGrant",
    "DevicePool",
    "KubeletHistory",
    "KubeletNode",
    "KubeletState",
    "KubeletView",
    "NodePods",
    "NotAdmitted",
    "PluginDevice",
    "PodDemand",
    "Reading",
    "admit_pod",
    "aligner",
    "check_node_fit",
    "core_rule_of",
    "free_on",
    "known_of",
    "pod_demand",
    "refuse_exploration",
    "refuse_promises",
    "refuse_unpinned",
    "refuse_unsure",
    "unknown_words",
    "view_after_eviction",
    "would_admit",
]
