"""What a pod demands of a node besides resources, as Kubernetes defines it: affinity, tolerations, spread, ports, volumes."""

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
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on a label (or on a field such as ``metadata.name``)."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """All of its conditions must hold; an empty term matches nothing."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class PreferredNodeTerm:
    """A node term worth ``weight`` (1 to 100) points when it matches."""

    weight: int
    term: NodeTerm


@dataclass(frozen=True, slots=True)
class Toleration:
    """A taint this pod puts up with. Empty ``key`` with ``exists`` tolerates every key; empty ``effect`` every effect."""

    key: str = ""
    exists: bool = False  # operator Exists; otherwise Equal
    value: str = ""
    effect: str = ""
    compares: Operator | None = None  # GT or LT: the taint's value is compared with ``value``, both integers


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements must hold; no requirement matches every object. ``None`` in its place matches none."""

    requirements: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class PodTerm:
    """Pods (by label and namespace) that this pod wants near or far, counted per value of ``topology_key``."""

    topology_key: str
    selector: LabelSelector | None
    namespaces: tuple[str, ...]  # already defaulted to the pod's own namespace
    namespace_selector: LabelSelector | None = None


@dataclass(frozen=True, slots=True)
class PreferredPodTerm:
    """A pod term worth ``weight`` (1 to 100) points."""

    weight: int
    term: PodTerm


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """Keep matching pods even over the values of ``topology_key``."""

    topology_key: str
    max_skew: int
    hard: bool  # whenUnsatisfiable: DoNotSchedule
    selector: LabelSelector | None
    min_domains: int = 1
    honor_affinity: bool = True  # nodeAffinityPolicy: Honor (default)
    honor_taints: bool = False  # nodeTaintsPolicy: Ignore (default)
    default: bool = False  # from the configuration: the pod itself names no constraint
    needs_label: bool = True  # a node without the label is no good; else it is compared by the other constraints alone


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port that the pod occupies on the node itself."""

    port: int
    protocol: str = "TCP"
    ip: str = "0.0.0.0"  # noqa: S104  (Kubernetes' wildcard, nothing listens here)


class DiskKind(StrEnum):
    """Kinds of disks that a pod's spec names itself, without a claim, and that must not be used twice on one node."""

    GCE = "gcePersistentDisk"
    AWS = "awsElasticBlockStore"
    ISCSI = "iscsi"
    RBD = "rbd"


@dataclass(frozen=True, slots=True)
class InlineDisk:
    """A disk that the pod's spec names itself. ``monitors`` are those of a Ceph cluster, empty for every other kind."""

    kind: DiskKind
    identity: str
    read_only: bool = False
    monitors: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Constraints:
    """Every demand of one pod. ``unsupported`` names what the pod asks for and we cannot honour: such a pod is refused."""

    node_name: str = ""
    node_selector: tuple[tuple[str, str], ...] = ()
    node_terms: tuple[NodeTerm, ...] | None = None  # required node affinity: any of these
    preferred_nodes: tuple[PreferredNodeTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    preferred_affinity: tuple[PreferredPodTerm, ...] = ()
    preferred_anti_affinity: tuple[PreferredPodTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    claims: tuple[str, ...] = ()  # PersistentVolumeClaims in the pod's namespace
    ephemeral: tuple[
        tuple[str, str], ...
    ] = ()  # those of them made from ephemeral volumes, with the uid that must own them
    disks: tuple[InlineDisk, ...] = ()
    features: tuple[str, ...] = ()  # node features that the pod needs (status.declaredFeatures)
    unsupported: tuple[str, ...] = ()
