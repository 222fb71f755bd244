"""
The options of the kubelet's resource managers up to Kubernetes 1.36, and which of those that are published decide in unknown ways.

Names are those of ``cpuManagerPolicyOptions`` (cpumanager/policy_options.go) and ``topologyManagerPolicyOptions``
(topologymanager/policy_options.go).
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from re import search
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


MODELLED: Final = (1, 36)
"""The latest minor version of the kubelet whose managers ``core/kubelet`` follows."""


# A cluster has few versions, and each change of a node asks again.
@lru_cache(maxsize=1024)
def newer_version(kubelet: str) -> str:
    """The version in ``Node.kubelet`` (``<boot> v1.37.1``) where it is newer than what is modelled, else nothing."""
    found = search(r"(?:^| )v(\d{1,3})\.(\d{1,3})[^ ]*$", kubelet)
    return found[0].strip() if found and (int(found[1]), int(found[2])) > MODELLED else ""


def unknown_options(published: Mapping[str, bool], known: Iterable[str]) -> tuple[str, ...]:
    """Names of options that are on and that are none of the known ones: what they change is unknown here."""
    if not published:
        return ()
    # Only options that are on: an unknown one that is off changes nothing.
    return tuple(sorted(name for name, value in published.items() if value and name not in known))
