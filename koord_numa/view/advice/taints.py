"""A node that would take the pod if it tolerated the node's taints."""

from collections.abc import Iterator
from typing import Final

from koord_numa.core.objects.constraints import Toleration
from koord_numa.core.objects.node import Taint
from koord_numa.core.objects.verdicts import Reason
from koord_numa.core.value_objects import replace
from koord_numa.view.advice.probe import Probe, Remedy, where

NODES: Final = 64
"""Tainted nodes that are tried at most."""


def tainted_nodes(probe: Probe) -> Iterator[Remedy]:
    """One tainted node that has room."""
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


def _refused_for(probe: Probe, reason: Reason) -> list[str]:
    return [name for name, rejection in sorted(probe.rejections.items()) if rejection.reason is reason][:NODES]


def _tolerating(taint: Taint) -> Toleration:
    return Toleration(key=taint.key, value=taint.value, effect=str(taint.effect))
