"""Persistent volumes, claims, storage classes and volume limits of nodes, as far as placement depends on them."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from koord_numa.core.objects.constraints import InlineDisk, LabelSelector, NodeTerm
from koord_numa.core.value_objects import ValueObject, value_field

ClaimKey = tuple[str, str]
"""Namespace and name of a PersistentVolumeClaim."""


class PersistentVolume(ValueObject):
    """
    Volume and the nodes that can access it.

    ``node_terms`` is its required node affinity (any of these; ``None``: every node). ``zones`` are the zone and region labels of the
    volume, each with the values of which a node must have one. ``claim`` is ``namespace/name`` of its ``claimRef``. ``capacity`` is in
    bytes. ``driver`` and ``handle`` identify a CSI volume for the attach limits of a node.
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
    bound_by_controller: bool = False  # the claimRef was set by the controller, not by the creator of the volume
    deleting: bool = False
    driver: str = ""
    handle: str = ""
    resource_version: str = ""
    problem: str = ""

    def belongs_to(self, claim: "PersistentVolumeClaim") -> bool:
        """Return whether the volume is bound, or pre-bound by name, to this claim (component-helpers ``IsVolumeBoundToClaim``)."""
        return self.claim == f"{claim.namespace}/{claim.name}" and self.claim_uid in ("", claim.uid)


class PersistentVolumeClaim(ValueObject):
    """
    Claim, bound to ``volume`` or waiting. ``selected_node`` is the node for which a provisioner creates the volume.

    ``request`` is in bytes. A ``selector`` of ``None`` selects every volume.
    """

    namespace: str
    name: str
    uid: str = ""
    volume: str = ""  # spec.volumeName
    bound: bool = False  # bound completely, as confirmed by the volume controller
    lost: bool = False  # status.phase: Lost; its volume does not exist any more
    storage_class: str | None = None  # None: not defaulted yet; "": no class
    selected_node: str = ""
    owner: str = ""  # UID of the controlling owner: the pod, for a claim from an ephemeral volume
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
        """True if only one pod may use the claim."""
        return "ReadWriteOncePod" in self.access_modes


class StorageClass(ValueObject):
    """Storage class. With ``waits`` (WaitForFirstConsumer) volumes are created after a node was chosen, within ``topologies``."""

    name: str
    waits: bool = False
    provisioner: str = ""  # "" if volumes are created manually (kubernetes.io/no-provisioner)
    topologies: tuple[NodeTerm, ...] = ()  # allowedTopologies: any of these; empty means everywhere
    problem: str = ""


class CsiNode(ValueObject):
    """Attach limits of a node by CSI driver (CSINode ``allocatable.count``); drivers without a limit are absent."""

    name: str
    limits: tuple[tuple[str, int], ...] = ()
    problem: str = ""


class CsiDriver(ValueObject):
    """CSI driver. With ``publishes_capacity`` it publishes free capacity, and a claim requires enough (``storageCapacity``)."""

    name: str
    publishes_capacity: bool = False


class StorageCapacity(ValueObject):
    """Capacity of a storage class on the nodes that ``topology`` selects; ``largest`` is the maximum volume size in bytes."""

    name: str
    storage_class: str
    topology: LabelSelector | None = None
    largest: int = 0
    problem: str = ""


class VolumeAttachment(ValueObject):
    """Volume that is or will be attached to a node, whether a pod uses it or not."""

    name: str
    node: str
    volume: str


class NodeVolumes(ValueObject):
    """Volumes of placed pods on a node: claims with the number of users, and inline disks."""

    claims: Counter[ClaimKey] = value_field(default_factory=Counter)
    disks: Counter[InlineDisk] = value_field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Storage:
    """
    State of volumes for a decision.

    ``claims`` by (namespace, name), all others by name; ``capacities`` by storage class, ``attached`` are volumes by node. ``in_use`` is
    the number of placed pods that use a claim, ``on_node`` the same by node. ``reserved`` are volumes that unwritten decisions have
    assigned to a claim, ``selected`` the nodes that they have chosen for claims to provision, ``failed`` the nodes on which a claim
    recently could not be bound. ``known`` is false until claims, volumes and classes have been listed.
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
    )  # cache of core.fit.volume_binding

    def node_of(self, claim: PersistentVolumeClaim) -> str:
        """
        Return the node chosen for an unbound claim, by a decision in flight or in its annotation; empty if there is none.

        A deleted node is ignored: its provisioner cannot respond, and the next decision overwrites it.
        """
        chosen = self.selected.get(claim.key, claim.selected_node)
        return chosen if chosen and self.node_exists(chosen) else ""
