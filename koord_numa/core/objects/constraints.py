"""
Constraints of a pod besides resources, the matching of selectors, and the objects that select pods.

The objects are Services, controllers, PodDisruptionBudgets and namespaces.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final

from koord_numa.core.value_objects import ValueObject, value_field


class Operator(StrEnum):
    """Operators of node selector and label selector requirements."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


class TaintEffect(StrEnum):
    """Effects of taints on pods that do not tolerate them."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Requirement(ValueObject):
    """Condition on a label (or on a field such as ``metadata.name``)."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class NodeTerm(ValueObject):
    """Node selector term. All its conditions must hold; an empty term matches nothing."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


class PreferredNodeTerm(ValueObject):
    """Node selector term with a ``weight`` of 1 to 100 points."""

    weight: int
    term: NodeTerm


class Toleration(ValueObject):
    """Toleration of a taint. An empty ``key`` with ``exists`` tolerates every key, an empty ``effect`` every effect."""

    key: str = ""
    exists: bool = False  # operator Exists; otherwise Equal
    value: str = ""
    effect: str = ""
    compares: Operator | None = None  # GT or LT: the taint's value is compared with ``value``, both integers


class LabelSelector(ValueObject):
    """
    Label selector. All requirements must hold; without requirements it matches every object. ``None`` instead of a selector matches none.
    """

    requirements: tuple[Requirement, ...] = ()


class PodTerm(ValueObject):
    """Affinity term: pods by label and namespace, counted per value of ``topology_key``."""

    topology_key: str
    selector: LabelSelector | None
    namespaces: tuple[str, ...]  # defaulted to the pod's namespace by the parser
    namespace_selector: LabelSelector | None = None


class PreferredPodTerm(ValueObject):
    """Affinity term with a ``weight`` of 1 to 100 points."""

    weight: int
    term: PodTerm


class SpreadConstraint(ValueObject):
    """Topology spread constraint: distribute matching pods evenly over the values of ``topology_key``."""

    topology_key: str
    max_skew: int
    hard: bool  # whenUnsatisfiable: DoNotSchedule
    selector: LabelSelector | None
    min_domains: int = 1
    honor_affinity: bool = True  # nodeAffinityPolicy: Honor (default)
    honor_taints: bool = False  # nodeTaintsPolicy: Ignore (default)
    default: bool = False  # configured default: the pod has no constraint of its own
    needs_label: bool = True  # a node without the label does not fit; else only the other constraints compare it


class HostPort(ValueObject):
    """Port that the pod occupies on the node."""

    port: int
    protocol: str = "TCP"
    ip: str = "0.0.0.0"  # noqa: S104  (Kubernetes' wildcard, nothing listens here)


class DiskKind(StrEnum):
    """Kinds of disks in a pod's spec, without a claim, that must not be used twice on a node."""

    GCE = "gcePersistentDisk"
    AWS = "awsElasticBlockStore"
    ISCSI = "iscsi"
    RBD = "rbd"


class InlineDisk(ValueObject):
    """Disk in a pod's spec. ``monitors`` are those of a Ceph cluster, empty for every other kind."""

    kind: DiskKind
    identity: str
    read_only: bool = False
    monitors: frozenset[str] = frozenset()


class Constraints(ValueObject):
    """Constraints of a pod. ``unsupported`` lists the requirements that are not supported: such a pod is rejected."""

    node_name: str = ""
    node_selector: tuple[tuple[str, str], ...] = ()
    node_terms: tuple[NodeTerm, ...] | None = None  # required node affinity: any of these terms
    preferred_nodes: tuple[PreferredNodeTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    preferred_affinity: tuple[PreferredPodTerm, ...] = ()
    preferred_anti_affinity: tuple[PreferredPodTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    claims: tuple[str, ...] = ()  # PersistentVolumeClaims in the pod's namespace
    ephemeral: tuple[tuple[str, str], ...] = ()  # claims from ephemeral volumes, with the UID of the required owner
    disks: tuple[InlineDisk, ...] = ()
    features: tuple[str, ...] = ()  # required node features (status.declaredFeatures)
    unsupported: tuple[str, ...] = ()


Labels = Mapping[str, str]
_Test = Callable[[str | None, tuple[str, ...]], bool]


_INT64_DIGITS: Final = 19


def _number(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isascii() or not digits.isdigit():
        return None
    digits = digits.lstrip("0") or "0"
    if len(digits) > _INT64_DIGITS:
        return None
    number = -int(digits) if text[0] == "-" else int(digits)
    return number if -(1 << 63) <= number < 1 << 63 else None  # as strconv.ParseInt(text, 10, 64)


def _greater(value: str | None, values: tuple[str, ...]) -> bool:
    left, right = _number(value or ""), _number(values[0] if len(values) == 1 else "")
    return left is not None and right is not None and left > right


def _less(value: str | None, values: tuple[str, ...]) -> bool:
    left, right = _number(value or ""), _number(values[0] if len(values) == 1 else "")
    return left is not None and right is not None and left < right


# As labels.Requirement.Matches in apimachinery: NotIn and DoesNotExist match absent keys, Gt and Lt compare integers.
_TESTS: Final[Mapping[Operator, _Test]] = {
    Operator.IN: lambda value, values: value is not None and value in values,
    Operator.NOT_IN: lambda value, values: value is None or value not in values,
    Operator.EXISTS: lambda value, _: value is not None,
    Operator.DOES_NOT_EXIST: lambda value, _: value is None,
    Operator.GT: _greater,
    Operator.LT: _less,
}


def meets(labels: Labels, requirements: Iterable[Requirement]) -> bool:
    """Return whether the labels meet every requirement."""
    return all(_TESTS[need.operator](labels.get(need.key), need.values) for need in requirements)


def selects(selector: LabelSelector | None, labels: Labels) -> bool:
    """Return whether the selector matches these labels. ``None`` matches nothing, an empty selector everything."""
    return selector is not None and meets(labels, selector.requirements)


def matches_term(term: NodeTerm, node: str, labels: Labels) -> bool:
    """Return whether a node with this name and these labels matches the term. An empty term matches no node."""
    if not term.labels and not term.fields:
        return False
    return meets(labels, term.labels) and meets({"metadata.name": node}, term.fields)


class WorkloadKind(StrEnum):
    """Kinds whose pods are spread by default."""

    SERVICE = "Service"
    REPLICATION_CONTROLLER = "ReplicationController"
    REPLICA_SET = "ReplicaSet"
    STATEFUL_SET = "StatefulSet"


class WorkloadKey(ValueObject):
    """Identity of a workload."""

    kind: WorkloadKind
    namespace: str
    name: str


class Workload(ValueObject):
    """Workload and the selector of its pods; without a selector it selects none."""

    key: WorkloadKey
    selector: LabelSelector | None


class DisruptionBudget(ValueObject):
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


class Namespace(ValueObject):
    """Namespace with the labels that ``namespaceSelector`` of an affinity term matches."""

    name: str
    labels: Mapping[str, str] = value_field(default_factory=dict)
    problem: str = ""
