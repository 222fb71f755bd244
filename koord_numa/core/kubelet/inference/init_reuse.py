"""
CPUs and devices that finished init containers still hold: the kubelet keeps them until the pod is gone, exporters overlook them.

The pod resources API lists running containers only, so what it leaves out is estimated here from the pods' requests.
"""

from collections.abc import Sequence
from dataclasses import replace

from koord_numa.core.kubelet.managers.aggregates import PodDemand
from koord_numa.core.objects.node import Zone


def without_leftovers(zones: Sequence[Zone], pods: Sequence[PodDemand]) -> tuple[Zone, ...]:
    """
    The zones with less available, where init containers have left more than later ones took over.

    On which NUMA node that is is not published, so it is missing on each. An exporter that does count them shows more in use than
    running containers ask for: that much is not subtracted again.
    """
    left: dict[str, int] = {}
    for pod in pods:
        for name, amount in pod.leftovers.items():
            left[name] = left.get(name, 0) + amount
    if not left:
        return tuple(zones)
    running = {name: sum(pod.lasting.get(name, 0) for pod in pods) for name in left}
    missing: dict[str, int] = {}
    for name, amount in left.items():
        in_use = sum(zone.allocatable.get(name, 0) - zone.available.get(name, 0) for zone in zones)
        # What is in use beyond the requests of running containers is counted by the exporter already.
        hidden = amount - max(0, in_use - running[name])
        if hidden > 0:
            missing[name] = hidden
    if not missing:
        return tuple(zones)
    return tuple(
        replace(zone, available={name: amount - missing.get(name, 0) for name, amount in zone.available.items()})
        for zone in zones
    )
