"""
What a scheduler would decide about one pod now, node by node: for ``explain``, ``simulate`` and tests of agreement. It changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Rejection, Unschedulable
from koord_numa.core.scheduling.evaluate import ScoredPlacement, choose
from koord_numa.engine.handle import Handle
from koord_numa.engine.queue.request_class import RequestClass


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """
    ``verdict`` is where the pod would go, or why nowhere. ``nodes`` has every node's answer by name: its refusal, or what the pod would
    get there with its complete score and the points of each scorer (``ScoredPlacement.parts``).
    """

    verdict: Placement | Unschedulable
    nodes: Mapping[str, ScoredPlacement | Rejection]


def verdict_on(handle: Handle, pod: Pod, request_class: RequestClass) -> Placement | Unschedulable:
    """The verdict of ``dry_run`` alone, from what its class remembers of the nodes, as in a scheduling cycle: for many pods in a row."""
    nominated = handle.nominator.node_of(pod)
    freed = handle.selector.try_node(request_class, nominated, pod) if nominated else None
    return freed if isinstance(freed, Placement) else handle.selector.decide(request_class, pod.images)


def dry_run(handle: Handle, pod: Pod) -> DryRunResult | None:
    """
    Ask every node about a pod; ``None`` when its scheduler name is none of ours. The node it is nominated for goes first, as in a cycle.
    """
    request_class = handle.classes.of(pod)
    if request_class is None:
        return None
    nodes = handle.selector.answers(request_class, pod)
    # As in a cycle: the node that is being freed goes before a better one.
    nominated = nodes.get(handle.nominator.node_of(pod))
    if isinstance(nominated, ScoredPlacement):
        return DryRunResult(nominated.placement, nodes)
    return DryRunResult(choose(nodes), nodes)
