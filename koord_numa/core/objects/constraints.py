"""Constraints of a pod besides resources, as defined by Kubernetes: affinity, tolerations, spread, ports, volumes."""

from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class Requirement:
    """Condition on a label (or on a field such as ``metadata.name``)."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Node selector term. All its conditions must hold; an empty term matches nothing."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class PreferredNodeTerm:
    """Node selector term with a ``weight`` of 1 to 100 points."""

    weight: int
    term: NodeTerm


@dataclass(frozen=True, slots=True)
class Toleration:
    """Toleration of a taint. An empty ``key`` with ``exists`` tolerates every key, an empty ``effect`` every effect."""

    key: str = ""
    exists: bool = False  # operator Exists; otherwise Equal
    value: str = ""
    effect: str = ""
    compares: Operator | None = None  # GT or LT: the taint's value is compared with ``value``, both integers


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """
    Label selector. All requirements must hold; without requirements it matches every object. ``None`` instead of a selector matches none.
    """

    requirements: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class PodTerm:
    """Affinity term: pods by label and namespace, counted per value of ``topology_key``."""

    topology_key: str
    selector: LabelSelector | None
    namespaces: tuple[str, ...]  # defaulted to the pod's namespace by the parser
    namespace_selector: LabelSelector | None = None


@dataclass(frozen=True, slots=True)
class PreferredPodTerm:
    """Affinity term with a ``weight`` of 1 to 100 points."""

    weight: int
    term: PodTerm


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
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


@dataclass(frozen=True, slots=True)
class HostPort:
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


@dataclass(frozen=True, slots=True)
class InlineDisk:
    """Disk in a pod's spec. ``monitors`` are those of a Ceph cluster, empty for every other kind."""

    kind: DiskKind
    identity: str
    read_only: bool = False
    monitors: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Constraints:
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
