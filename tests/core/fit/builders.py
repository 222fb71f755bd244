"""Short spellings of nodes, pods and terms for the predicates' tables."""

from collections.abc import Mapping

from koord_numa.core.objects.constraints import Constraints, LabelSelector, Operator, PodTerm, Requirement
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodKey, PodRequest
from koord_numa.core.value_objects import replace


def node(name: str = "worker", **labels: str) -> Node:
    """A node whose label keys are given as keywords."""
    return Node(name=name, uid=f"{name}-uid", labels=labels)


def asks(demands: Constraints, **labels: str) -> PodRequest:
    """A request with these demands."""
    return PodRequest(constraints=demands, labels=tuple(sorted(labels.items())))


def label(key: str, *values: str, op: Operator = Operator.IN) -> Requirement:
    """One requirement."""
    return Requirement(key, op, values)


def near(key: str, **labels: str) -> PodTerm:
    """Pods with these labels in the default namespace, per value of ``key``."""
    wanted = tuple(label(name, value) for name, value in sorted(labels.items()))
    return PodTerm(key, LabelSelector(wanted), ("default",))


def placed(name: str, on: Node, demands: Constraints | None = None, **labels: str) -> tuple[Node, Pod]:
    """A running pod of the default namespace."""
    request = replace(asks(demands or Constraints(), **labels))
    return on, Pod(PodKey("default", name, name), request, node=on.name, labels=tuple(sorted(labels.items())))


def counted(values: Mapping[str, int]) -> dict[str, int]:
    """Only what was counted at all."""
    return {key: value for key, value in values.items() if value}
