"""
The options of the kubelet's resource managers up to Kubernetes 1.36, and which of those that are published decide in unknown ways.

Names are those of ``cpuManagerPolicyOptions`` (cpumanager/policy_options.go) and ``topologyManagerPolicyOptions``
(topologymanager/policy_options.go).
"""

from collections.abc import Iterable, Mapping
from typing import Final

CPU_OPTIONS: Final = frozenset(
    {
        "align-by-socket",
        "distribute-cpus-across-cores",
        "distribute-cpus-across-numa",
        "full-pcpus-only",
        "prefer-align-cpus-by-uncorecache",
        "strict-cpu-reservation",
    }
)

TOPOLOGY_OPTIONS: Final = frozenset({"max-allowable-numa-nodes", "prefer-closest-numa-nodes"})


def unknown_options(published: Mapping[str, bool], known: Iterable[str]) -> tuple[str, ...]:
    """Names of options that are on and that are none of the known ones: what they change is unknown here."""
    # Only options that are on: an unknown one that is off changes nothing.
    return tuple(sorted(name for name, value in published.items() if value and name not in known))
