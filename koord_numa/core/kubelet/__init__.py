"""
A model of the kubelet: which pods it admits now, and which CPUs, memory and devices they get.

Other packages import the names of this module only. ``kubelet_view(node, topology, holdings)`` collects what is known of
a node, and ``would_admit(request, view)`` returns a ``KubeletAdmission`` or a ``Rejection``. ``Belief`` follows a kubelet
by events. ``admit_pod`` runs the kubelet's own admission on a known state. Modules import only modules below them in the
contract of pyproject.toml, from ``demand`` and ``state`` up to ``prediction``.
"""

from koord_numa.core.kubelet.admit import NotAdmitted, admit_pod
from koord_numa.core.kubelet.belief import (
    TOO_MANY,
    Belief,
    InFlightPods,
    expecting,
    expecting_on_each,
    mask_of,
    not_counted,
    one_more,
    refused_ones,
)
from koord_numa.core.kubelet.bounds import NOT_SURELY_ALIGNED, Aligner, aligner, everything, refuse_unsure
from koord_numa.core.kubelet.demand import (
    OUT_OF,
    REASONS,
    SMT_ALIGNMENT,
    TOPOLOGY_AFFINITY,
    UNEXPECTED_ADMISSION,
    PodDemand,
    check_node_fit,
    pod_demand,
)
from koord_numa.core.kubelet.hypothesis import Hypothesis
from koord_numa.core.kubelet.inferred_state import overlooked_use, shown_where_foreseen, used_starts
from koord_numa.core.kubelet.node_config import NodeConfig, exact_hypothesis, starts
from koord_numa.core.kubelet.prediction import refuse_exploration, would_admit
from koord_numa.core.kubelet.replay import Arrival, without_left
from koord_numa.core.kubelet.state import (
    STEP_COUNT,
    ContainerGrant,
    DevicePool,
    KubeletNode,
    KubeletState,
    OnTruncation,
    PluginDevice,
    TooManyWays,
    free_on,
)
from koord_numa.core.kubelet.variants import most_cpus
from koord_numa.core.kubelet.view import (
    ONE_SLICE,
    Explorations,
    KubeletView,
    PodsThere,
    core_rule_of,
    followed_view,
    frame_of,
    inferred_view,
    known_of,
    kubelet_view,
    never_fits,
    problem_of,
    refuse_promises,
    refuse_unpinned,
    unknown_words,
)

__all__ = [
    "NOT_SURELY_ALIGNED",
    "ONE_SLICE",
    "OUT_OF",
    "REASONS",
    "SMT_ALIGNMENT",
    "STEP_COUNT",
    "TOO_MANY",
    "TOPOLOGY_AFFINITY",
    "UNEXPECTED_ADMISSION",
    "Aligner",
    "Arrival",
    "Belief",
    "ContainerGrant",
    "DevicePool",
    "Explorations",
    "Hypothesis",
    "InFlightPods",
    "KubeletNode",
    "KubeletState",
    "KubeletView",
    "NodeConfig",
    "NotAdmitted",
    "OnTruncation",
    "PluginDevice",
    "PodDemand",
    "PodsThere",
    "TooManyWays",
    "admit_pod",
    "aligner",
    "check_node_fit",
    "core_rule_of",
    "everything",
    "exact_hypothesis",
    "expecting",
    "expecting_on_each",
    "followed_view",
    "frame_of",
    "free_on",
    "inferred_view",
    "known_of",
    "kubelet_view",
    "mask_of",
    "most_cpus",
    "never_fits",
    "not_counted",
    "one_more",
    "overlooked_use",
    "pod_demand",
    "problem_of",
    "refuse_exploration",
    "refuse_promises",
    "refuse_unpinned",
    "refuse_unsure",
    "refused_ones",
    "shown_where_foreseen",
    "starts",
    "unknown_words",
    "used_starts",
    "without_left",
    "would_admit",
]
