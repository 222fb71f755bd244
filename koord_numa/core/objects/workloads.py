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
    """One object of these kinds."""

    kind: WorkloadKind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Workload:
    """An object and the pods that it selects in its namespace; without a selector it selects none."""

    key: WorkloadKey
    selector: LabelSelector | None


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """
    How many of the pods that ``selector`` matches in ``namespace`` may be evicted now.

    Pods that are not ready may be evicted beyond that: always with ``unhealthy_always`` (``unhealthyPodEvictionPolicy: AlwaysAllow``),
    else while as many as desired are healthy (``healthy``).
    """

    namespace: str
    name: str
    selector: LabelSelector | None
    allowed: int = 0  # status.disruptionsAllowed
    disrupted: tuple[str, ...] = ()  # names of pods whose eviction is counted already
    unhealthy_always: bool = False
    healthy: bool = False  # status.currentHealthy is at least status.desiredHealthy, and that is above 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Namespace:
    """What a ``namespaceSelector`` of an affinity term looks at."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
