"""The objects behind pods whose selectors say which pods belong together: Services and the controllers that make pods."""

from dataclasses import dataclass
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
