"""
Keeps CPUs and memory for the devices beside them: a GPU on a node without free CPUs is lost to all pods.

A node's share of CPU or memory in use should not run ahead of the share of its devices in use. Nodes without devices are never at risk.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from koord_numa.core.resources import ResourceList, is_native
from koord_numa.core.score.node_resources import ALWAYS_SCORED, MAX_SCORE


def score_sparing(wanted: ResourceList, offer: ResourceList, held: Mapping[str, int]) -> int:
    """
    100 where no device is stranded, less by as many points as the fullest of CPU and memory is ahead of the least used device, in
    percent of the node, once the pod is added.
    """
    devices = [_percent(name, wanted, offer, held) for name in offer if is_device(name) and offer[name] > 0]
    if not devices:
        return MAX_SCORE
    common = max((_percent(name, wanted, offer, held) for name in ALWAYS_SCORED if offer.get(name, 0) > 0), default=0)
    # The least used device is the one at risk: it has the most units that could be stranded.
    return MAX_SCORE - max(0, min(MAX_SCORE, common) - min(devices))


@lru_cache(maxsize=1024)
def is_device(resource: str) -> bool:
    """Extended resources are pieces of hardware that only some nodes have; Koordinator's batch amounts are not."""
    return not is_native(resource) and not resource.startswith(_NOT_HARDWARE)


# Resources of these prefixes are amounts that a webhook or manager publishes for every node.
_NOT_HARDWARE: Final = ("kubernetes.io/", "koordinator.sh/")


def _percent(name: str, wanted: ResourceList, offer: ResourceList, held: Mapping[str, int]) -> int:
    return (held.get(name, 0) + wanted.get(name, 0)) * MAX_SCORE // offer[name]
