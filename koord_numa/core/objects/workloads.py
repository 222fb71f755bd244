"""Services, controllers, PodDisruptionBudgets and namespaces, as far as decisions depend on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from koord_numa.core.objects.constraints import LabelSelector


class WorkloadKind(StrEnum):
    """Kinds whose pods are spread by default."""

    SERVICE = "Service"
    REPLICATION_CONTROLLER = "ReplicationController"
    REPLICA_SET = "ReplicaSet"
    STATEFUL_SET = "StatefulSet"


@dataclass(frozen=True, slots=True)
class WorkloadKey:
    """Identity of a workload."""

    kind: WorkloadKind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Workload:
    """Workload and the selector of its pods; without a selector it selects none."""

    key: WorkloadKey
    selector: LabelSelector | None


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """
    PodDisruptionBudget: the number of pods matching ``selector`` in ``namespace`` that may be evicted now.

    Pods that are not ready may be evicted in addition: always with ``unhealthy_always`` (``unhealthyPodEvictionPolicy: AlwaysAllow``), else
    while the desired number is healthy (``healthy``).
    """

    namespace: str
    name: str
    selector: LabelSelector | None
    allowed: int = 0  # status.disruptionsAllowed
    disrupted: tuple[str, ...] = ()  # names of pods with an already counted eviction
    unhealthy_always: bool = False
    healthy: bool = False  # status.currentHealthy is at least status.desiredHealthy, which is above 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Namespace:
    """Namespace with the labels that ``namespaceSelector`` of an affinity term matches."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
