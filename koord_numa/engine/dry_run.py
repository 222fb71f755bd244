"""Dry run of the scheduler for one pod, node by node, for ``explain``, ``simulate`` and agreement tests. It changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Rejection, Unschedulable
from koord_numa.core.scheduling.filters import ScoredPlacement, choose
from koord_numa.engine.handle import Handle
from koord_numa.engine.queue.request_class import RequestClass


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """
    Result of a dry run.

    ``verdict`` is the placement, or why there is none. ``nodes`` holds every node's result by name: its rejection, or the placement there
    with its complete score and the points of each scorer (``ScoredPlacement.parts``).
    """

    verdict: Placement | Unschedulable
    nodes: Mapping[str, ScoredPlacement | Rejection]


def verdict_on(handle: Handle, pod: Pod, request_class: RequestClass) -> Placement | Unschedulable:
    """Return only the verdict of ``dry_run``, from cached results of the class as in a scheduling cycle. Suited for many pods."""
    nominated = handle.nominator.node_of(pod)
    freed = handle.selector.try_node(request_class, nominated, pod) if nominated else None
    return freed if isinstance(freed, Placement) else handle.selector.decide(request_class, pod.images)


def dry_run(handle: Handle, pod: Pod) -> DryRunResult | None:
    """Evaluate every node for a pod; ``None`` for an unknown scheduler name. The nominated node has precedence, as in a cycle."""
    request_class = handle.classes.of(pod)
    if request_class is None:
        return None
    nodes = handle.selector.answers(request_class, pod)
    # As in a cycle: the nominated node has precedence over a better node.
    nominated = nodes.get(handle.nominator.node_of(pod))
    if isinstance(nominated, ScoredPlacement):
        return DryRunResult(nominated.placement, nodes)
    return DryRunResult(choose(nodes), nodes)
