"""
CPUs and devices that finished init containers still hold: the kubelet keeps them until the pod is gone, exporters overlook them.

The pod resources API lists running containers only, so what it leaves out is estimated here from the pods' requests.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from koord_numa.core.amounts import CPU, MILLI
from koord_numa.core.kubelet.aggregates import Demand, PodDemand
from koord_numa.core.node import Zone
from koord_numa.core.vocabulary import ContainerKind


def without_leftovers(zones: Sequence[Zone], pods: Sequence[PodDemand]) -> tuple[Zone, ...]:
    """
    The zones with less available, where init containers have left more than later ones took over.

    Nobody says on which NUMA node that is, so it is missing on each. An exporter that does count them shows more in use than
    running containers ask for: that much is not subtracted again.
    """
    left: dict[str, int] = {}
    running: dict[str, int] = {}
    for pod in pods:
        peak, lasting = _peak_and_lasting(pod)
        for name, amount in peak.items():
            left[name] = left.get(name, 0) + max(0, amount - lasting.get(name, 0))
            running[name] = running.get(name, 0) + lasting.get(name, 0)
    missing: dict[str, int] = {}
    for name, amount in left.items():
        in_use = sum(zone.allocatable.get(name, 0) - zone.available.get(name, 0) for zone in zones)
        hidden = amount - max(0, in_use - running[name])
        if hidden > 0:
            missing[name] = hidden
    if not missing:
        return tuple(zones)
    return tuple(
        replace(zone, available={name: amount - missing.get(name, 0) for name, amount in zone.available.items()})
        for zone in zones
    )


def _peak_and_lasting(pod: PodDemand) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Most held at once, and held for good."""
    lasting: dict[str, int] = {}
    for container, demand in pod.containers:
        if container.kind is not ContainerKind.INIT:
            for name, amount in _pinned(demand):
                lasting[name] = lasting.get(name, 0) + amount
    return dict(_pinned(pod.pod)), lasting


def _pinned(demand: Demand) -> Iterator[tuple[str, int]]:
    yield CPU, demand.cpus * MILLI
    yield from demand.devices.items()
