"""Nodes that would take the pod if it tolerated their taints, or if its node selector or affinity let it go there."""

from collections.abc import Iterator
from typing import Final

from koord_numa.core.objects.constraints import Constraints, Toleration
from koord_numa.core.objects.node import Taint
from koord_numa.core.objects.verdicts import Reason
from koord_numa.core.value_objects import replace
from koord_numa.view.advice.probe import Probe, Remedy, where

NODES: Final = 64
"""At most so many nodes that the pod was kept from are tried."""


def other_nodes(probe: Probe) -> Iterator[Remedy]:
    """One tainted node, and one that the pod's selector or affinity excludes, if they have room."""
    yield from _tainted(probe)
    yield from _excluded(probe)


def _tainted(probe: Probe) -> Iterator[Remedy]:
    for name in _refused_for(probe, Reason.TAINT):
        info = probe.scheduler.cache.nodes.get(name)
        taints = () if info is None or info.node is None else info.node.taints
        constraints = probe.pod.request.constraints
        tolerations = (*constraints.tolerations, *(_tolerating(taint) for taint in taints))
        request = replace(probe.pod.request, constraints=replace(constraints, tolerations=tolerations))
        placement = probe.fits(request, name)
        if placement is not None:
            texts = ", ".join(
                f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}" for taint in taints
            )
            yield Remedy("node", name, f"tolerating {texts} it fits on {where(placement)}")
            return


def _excluded(probe: Probe) -> Iterator[Remedy]:
    free = replace(probe.pod.request, constraints=_anywhere(probe.pod.request.constraints))
    for name in _refused_for(probe, Reason.NODE_AFFINITY):
        placement = probe.fits(free, name)
        if placement is not None:
            yield Remedy(
                "node", name, f"if its node selector or affinity allowed {name}, it fits on {where(placement)}"
            )
            return


def _refused_for(probe: Probe, reason: Reason) -> list[str]:
    return [name for name, rejection in sorted(probe.rejections.items()) if rejection.reason is reason][:NODES]


def _tolerating(taint: Taint) -> Toleration:
    return Toleration(key=taint.key, value=taint.value, effect=str(taint.effect))


def _anywhere(constraints: Constraints) -> Constraints:
    return replace(constraints, node_selector=(), node_terms=None)
