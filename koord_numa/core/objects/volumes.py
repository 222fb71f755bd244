"""Persistent volumes, claims, storage classes and what limits them on a node, as far as they decide on which nodes a pod can run."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from koord_numa.core.objects.constraints import InlineDisk, LabelSelector, NodeTerm

ClaimKey = tuple[str, str]
"""Namespace and name of a PersistentVolumeClaim."""


@dataclass(frozen=True, slots=True)
class PersistentVolume:
    """
    A volume and the nodes that reach it.

    ``node_terms`` is its required node affinity (any of these; ``None``: every node). ``zones`` are the zone and region labels of the
    volume itself, each with the values of which a node must have one. ``claim`` is ``namespace/name`` of its ``claimRef``.
    ``capacity`` is in bytes. ``driver`` and ``handle`` name a CSI volume, as the attach limits of a node count it.
    """

    name: str
    node_terms: tuple[NodeTerm, ...] | None = None
    zones: tuple[tuple[str, tuple[str, ...]], ...] = ()
    claim: str = ""
    claim_uid: str = ""
    storage_class: str = ""
    capacity: int = 0
    access_modes: frozenset[str] = frozenset()
    block: bool = False  # volumeMode: Block
    attributes_class: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    available: bool = False  # status.phase: Available
    bound_by_controller: bool = False  # the claimRef was set for a claim, not by the creator of the volume
    deleting: bool = False
    driver: str = ""
    handle: str = ""
    resource_version: str = ""
    problem: str = ""

    def belongs_to(self, claim: "PersistentVolumeClaim") -> bool:
        """Is the volume bound, or pre-bound by name, to this claim? (component-helpers ``IsVolumeBoundToClaim``)"""
        return self.claim == f"{claim.namespace}/{claim.name}" and self.claim_uid in ("", claim.uid)


@dataclass(frozen=True, slots=True)
class PersistentVolumeClaim:
    """
    A claim: bound to ``volume``, or waiting. ``selected_node`` is the node for which a provisioner was told to make its volume.

    ``request`` is in bytes. ``selector`` of ``None`` selects every volume.
    """

    namespace: str
    name: str
    uid: str = ""
    volume: str = ""  # spec.volumeName
    bound: bool = False  # bound completely: the volume controller has agreed
    lost: bool = False  # status.phase: Lost; its volume no longer exists
    storage_class: str | None = None  # None: not defaulted yet; "": no class
    selected_node: str = ""
    owner: str = ""  # uid of the controlling owner: the pod, for a claim made from an ephemeral volume
    request: int = 0
    access_modes: frozenset[str] = frozenset()
    block: bool = False
    selector: LabelSelector | None = None
    attributes_class: str = ""
    deleting: bool = False
    resource_version: str = ""
    problem: str = ""

    @property
    def key(self) -> ClaimKey:
        """Namespace and name."""
        return (self.namespace, self.name)

    @property
    def read_write_once_pod(self) -> bool:
        """May only one pod use it?"""
        return "ReadWriteOncePod" in self.access_modes


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A way to make volumes. ``waits`` (WaitForFirstConsumer): only after a node was chosen, within ``topologies``."""

    name: str
    waits: bool = False
    provisioner: str = ""  # "" when volumes are made by hand (kubernetes.io/no-provisioner)
    topologies: tuple[NodeTerm, ...] = ()  # allowedTopologies: any of these; none means everywhere
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CsiNode:
    """How many volumes of each CSI driver a node can attach (CSINode ``allocatable.count``); a driver without a limit is absent."""

    name: str
    limits: tuple[tuple[str, int], ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CsiDriver:
    """A CSI driver. ``publishes_capacity``: it says how much room is left, and a claim must find enough (``storageCapacity``)."""

    name: str
    publishes_capacity: bool = False


@dataclass(frozen=True, slots=True)
class StorageCapacity:
    """Room for volumes of one class on the nodes that ``topology`` selects; ``largest`` is the size of the largest volume, in bytes."""

    name: str
    storage_class: str
    topology: LabelSelector | None = None
    largest: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class VolumeAttachment:
    """A volume that is attached to a node, or is to be, whether a pod uses it or not."""

    name: str
    node: str
    volume: str


@dataclass(frozen=True, slots=True)
class NodeVolumes:
    """What placed pods use on one node: claims with the number of users, and disks that are named in pods."""

    claims: Counter[ClaimKey] = field(default_factory=Counter)
    disks: Counter[InlineDisk] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Storage:
    """
    What a decision sees of volumes.

    ``claims`` by (namespace, name), everything else by name; ``capacities`` by storage class, ``attached`` are volumes by node.
    ``in_use`` is the number of placed pods that use a claim, ``on_node`` the same by node. ``reserved`` are volumes that decisions
    not yet written have given to a claim, ``selected`` the nodes that they have chosen for claims to be provisioned, ``failed`` the
    nodes on which a claim was not bound lately. ``known`` is false until claims, volumes and classes have been listed.
    """

    claims: Mapping[ClaimKey, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: Mapping[str, PersistentVolume] = field(default_factory=dict)
    classes: Mapping[str, StorageClass] = field(default_factory=dict)
    by_class: Mapping[str, Mapping[str, PersistentVolume]] = field(default_factory=dict)
    csi_nodes: Mapping[str, CsiNode] = field(default_factory=dict)
    drivers: Mapping[str, CsiDriver] = field(default_factory=dict)
    capacities: Mapping[str, Mapping[str, StorageCapacity]] = field(default_factory=dict)
    attached: Mapping[str, frozenset[str]] = field(default_factory=dict)
    in_use: Mapping[ClaimKey, int] = field(default_factory=dict)
    on_node: Mapping[str, NodeVolumes] = field(default_factory=dict)
    reserved: Mapping[str, ClaimKey] = field(default_factory=dict)
    selected: Mapping[ClaimKey, str] = field(default_factory=dict)
    failed: Mapping[ClaimKey, frozenset[str]] = field(default_factory=dict)
    node_exists: Callable[[str], bool] = lambda _: True
    known: bool = True
    candidates: dict[ClaimKey, object] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # see volume_candidates

    def node_of(self, claim: PersistentVolumeClaim) -> str:
        """
        The node that was chosen for an unbound claim, by a decision in flight or in its annotation; empty when none was.

        A node that is gone is chosen no more: its provisioner cannot answer, and the next decision writes another one over it.
        """
        chosen = self.selected.get(claim.key, claim.selected_node)
        return chosen if chosen and self.node_exists(chosen) else ""
