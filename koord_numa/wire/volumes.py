"""Parse persistent volumes, claims, storage classes and objects of CSI drivers."""

from collections.abc import Mapping
from typing import Any, Final

from koord_numa.core.fit.volumes import MIGRATED
from koord_numa.core.objects.constraints import DiskKind, NodeTerm, Operator, Requirement
from koord_numa.core.objects.volumes import (
    CsiDriver,
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageCapacity,
    StorageClass,
    VolumeAttachment,
)
from koord_numa.core.value_objects import value_field
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.parsing import (
    EnumReader,
    Int64,
    Problems,
    Quantity,
    Strict,
    head,
    read,
    requested,
    supplied,
    supply,
    version,
)
from koord_numa.wire.workloads import LabelSelectorModel, NodeSelectorModel, label_selector, node_terms


class StorageCapacityModel(Strict):
    """A CSIStorageCapacity, which has its fields at the top level instead of a spec."""

    storage_class_name: str = ""
    node_topology: LabelSelectorModel | None = None
    capacity: Quantity | None = None
    maximum_volume_size: Quantity | None = None


class VolumeCount(Strict):
    """The number of volumes that a driver can attach to a node."""

    count: Int64 | None = None


class CsiNodeDriver(Strict):
    """A driver on a node."""

    name: str
    allocatable: VolumeCount | None = None


class CsiNodeSpec(Strict):
    """Spec of a CSINode."""

    drivers: list[CsiNodeDriver] | None = None


class CsiDriverSpec(Strict):
    """Spec of a CSIDriver."""

    storage_capacity: bool | None = None


class AttachmentSource(Strict):
    """The attached volume: a volume by name, or an inline volume."""

    persistent_volume_name: str | None = None


class AttachmentSpec(Strict):
    """Spec of a VolumeAttachment."""

    node_name: str = ""
    source: AttachmentSource | None = None


def parse_csi_node(obj: Mapping[str, Any]) -> CsiNode:
    """Parse a CSINode. Raises ``WireError`` only for an object without a name."""
    problems = Problems()
    top = head(obj, "CSINode", problems)
    spec = problems.part(top, "spec", CsiNodeSpec)
    # A driver without a count has no limit (CSINode VolumeNodeResources.Count nil), which differs from 0.
    limits = {
        driver.name: driver.allocatable.count
        for driver in spec.drivers or ()
        if driver.allocatable is not None and driver.allocatable.count is not None
    }
    return CsiNode(top.name, tuple(sorted(limits.items())), problems.problem)


def parse_csi_driver(obj: Mapping[str, Any]) -> CsiDriver:
    """Parse a CSIDriver. Raises ``WireError`` only for an object without a name."""
    problems = Problems()
    top = head(obj, "CSIDriver", problems)
    spec = problems.part(top, "spec", CsiDriverSpec)
    # nil is false: without storageCapacity the scheduler does not check capacities (binder.go hasEnoughCapacity).
    return CsiDriver(top.name, bool(spec.storage_capacity))


def parse_storage_capacity(obj: Mapping[str, Any]) -> StorageCapacity:
    """Parse a CSIStorageCapacity, with the name ``namespace/name``. Raises ``WireError`` only for an object without a name."""
    problems = Problems()
    top = head(obj, "CSIStorageCapacity", problems)
    model = problems.collect(lambda: read(StorageCapacityModel, top.body, top.path), StorageCapacityModel())
    # As volumebinding/binder.go capacitySufficient: the maximum volume size if the driver reports it, else the capacity
    # left.
    text = model.capacity if model.maximum_volume_size is None else model.maximum_volume_size
    largest = 0 if text is None else problems.collect(lambda: supply(names.STORAGE, text, top.path.at("capacity")), 0)
    return StorageCapacity(
        name=f"{top.namespace}/{top.name}",  # generated names are unique only in a namespace
        storage_class=model.storage_class_name,
        topology=problems.collect(lambda: label_selector(model.node_topology, top.path.at("nodeTopology")), None),
        largest=largest,
        problem=problems.problem,
    )


def parse_attachment(obj: Mapping[str, Any]) -> VolumeAttachment:
    """Parse a VolumeAttachment. The volume is empty for an inline volume. Raises ``WireError`` only for an object without a name."""
    problems = Problems()
    top = head(obj, "VolumeAttachment", problems)
    spec = problems.part(top, "spec", AttachmentSpec)
    return VolumeAttachment(top.name, spec.node_name, (spec.source.persistent_volume_name or "") if spec.source else "")


ZONE_SEPARATOR: Final = "__"  # separates the zones of a volume in one label

BINDING_MODES: Final = EnumReader({"Immediate": False, "WaitForFirstConsumer": True})
VOLUME_MODES: Final = EnumReader({"Filesystem": False, "Block": True})


class VolumeAffinity(Strict):
    """The nodes that can access a volume."""

    required: NodeSelectorModel | None = None


class ClaimReference(Strict):
    """The claim that a volume is bound to."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class CsiSource(Strict):
    """A volume of a CSI driver."""

    driver: str = ""
    volume_handle: str = ""


class VolumeSpec(Strict):
    """Spec of a PersistentVolume."""

    node_affinity: VolumeAffinity | None = None
    claim_ref: ClaimReference | None = None
    storage_class_name: str | None = None
    capacity: dict[str, Quantity] | None = None
    access_modes: list[str] | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    csi: CsiSource | None = None
    aws_elastic_block_store: dict[str, Any] | None = None
    gce_persistent_disk: dict[str, Any] | None = None


class Phase(Strict):
    """The phase of an object."""

    phase: str | None = None


class ClaimResources(Strict):
    """The requested size of a claim."""

    requests: dict[str, Quantity] | None = None


class VolumeClaimSpec(Strict):
    """Spec of a PersistentVolumeClaim."""

    volume_name: str | None = None
    storage_class_name: str | None = None
    access_modes: list[str] | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    resources: ClaimResources | None = None
    selector: LabelSelectorModel | None = None


class LabelTerm(Strict):
    """A condition of an allowed topology."""

    key: str
    values: list[str] = value_field(default_factory=list)


class AllowedTopology(Strict):
    """A topology in which a class provisions volumes."""

    match_label_expressions: list[LabelTerm] | None = None


class ClassModel(Strict):
    """A StorageClass, which has its fields at the top level instead of a spec."""

    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[AllowedTopology] | None = None


def parse_volume(obj: Mapping[str, Any]) -> PersistentVolume:
    """Parse a PersistentVolume. Raises ``WireError`` only for an object without a name."""
    problems = Problems()
    top = head(obj, "PersistentVolume", problems)
    path = top.path.at("spec")
    spec = problems.part(top, "spec", VolumeSpec)
    status = problems.part(top, "status", Phase)
    required = spec.node_affinity.required if spec.node_affinity else None
    claim = spec.claim_ref or ClaimReference()
    driver, handle = _driver(spec)
    return PersistentVolume(
        name=top.name,
        node_terms=problems.collect(lambda: _terms(required, path.at("nodeAffinity")), None),
        zones=tuple(
            # Sorted, so that equal labels are equal values and cause no new evaluation.
            (key, tuple(sorted(set(top.labels[key].split(ZONE_SEPARATOR)))))
            for key in names.ZONE_LABELS
            if key in top.labels
        ),
        claim=f"{claim.namespace}/{claim.name}" if claim.name else "",
        claim_uid=claim.uid,
        # The annotation of Kubernetes before 1.6 overrides the field, for volumes and claims
        # (GetPersistentVolumeClass).
        storage_class=top.annotations.get(names.LEGACY_CLASS, spec.storage_class_name or ""),
        capacity=problems.collect(lambda: _size(supplied(spec.capacity, path.at("capacity"))), 0),
        access_modes=frozenset(spec.access_modes or ()),
        block=problems.collect(
            lambda: VOLUME_MODES.read(spec.volume_mode or "Filesystem", path.at("volumeMode")), False
        ),
        attributes_class=spec.volume_attributes_class_name or "",
        labels=tuple(sorted(top.labels.items())),
        # Only Available volumes may be chosen (volume FindMatchingVolume). The controller has not processed Pending
        # ones.
        available=status.phase == "Available",
        # The controller undoes its own binding if the claim is deleted. A volume reserved by a user stays reserved.
        bound_by_controller=names.BOUND_BY_CONTROLLER in top.annotations,
        deleting=top.metadata.deletion_timestamp is not None,
        driver=driver,
        handle=handle,
        resource_version=version(top),
        problem=problems.problem,
    )


def parse_claim(obj: Mapping[str, Any]) -> PersistentVolumeClaim:
    """Parse a PersistentVolumeClaim. Raises ``WireError`` only for an object without a name."""
    problems = Problems()
    top = head(obj, "PersistentVolumeClaim", problems)
    path = top.path.at("spec")
    spec = problems.part(top, "spec", VolumeClaimSpec)
    status = problems.part(top, "status", Phase)
    legacy = top.annotations.get(names.LEGACY_CLASS)
    requests = spec.resources.requests if spec.resources else None
    return PersistentVolumeClaim(
        namespace=top.namespace or "default",
        name=top.name,
        uid=top.uid,
        volume=spec.volume_name or "",
        # Both: users may set the name, too. The annotation marks the agreement of the controller.
        bound=bool(spec.volume_name) and names.BIND_COMPLETED in top.annotations,
        lost=status.phase == "Lost",
        # Also if empty (GetPersistentVolumeClaimClass): an empty class requests a volume without a class.
        storage_class=spec.storage_class_name if legacy is None else legacy,
        selected_node=top.annotations.get(names.SELECTED_NODE, ""),
        owner=top.metadata.controller,
        request=problems.collect(lambda: _size(requested(requests, path.at("resources"))), 0),
        access_modes=frozenset(spec.access_modes or ()),
        block=problems.collect(
            lambda: VOLUME_MODES.read(spec.volume_mode or "Filesystem", path.at("volumeMode")), False
        ),
        selector=problems.collect(lambda: label_selector(spec.selector, path.at("selector")), None),
        attributes_class=spec.volume_attributes_class_name or "",
        deleting=top.metadata.deletion_timestamp is not None,
        resource_version=version(top),
        problem=problems.problem,
    )


def parse_storage_class(obj: Mapping[str, Any]) -> StorageClass:
    """Parse a StorageClass. Raises ``WireError`` only for an object without a name."""
    problems = Problems()
    top = head(obj, "StorageClass", problems)
    model = problems.collect(lambda: read(ClassModel, top.body, top.path), ClassModel())
    mode = model.volume_binding_mode or "Immediate"  # the default of the API
    return StorageClass(
        name=top.name,
        waits=problems.collect(lambda: BINDING_MODES.read(mode, top.path.at("volumeBindingMode")), False),
        provisioner="" if model.provisioner == names.NO_PROVISIONER else model.provisioner,
        topologies=tuple(
            NodeTerm(
                labels=tuple(
                    Requirement(term.key, Operator.IN, tuple(sorted(term.values)))
                    for term in topology.match_label_expressions or ()
                )
            )
            for topology in model.allowed_topologies or ()
        ),
        problem=problems.problem,
    )


def _driver(spec: VolumeSpec) -> tuple[str, str]:
    """Return CSI driver and handle of a volume. In-tree volumes count as volumes of the driver that they are migrated to."""
    if spec.csi is not None:
        return spec.csi.driver, spec.csi.volume_handle
    if spec.aws_elastic_block_store is not None:
        return MIGRATED[DiskKind.AWS], str(spec.aws_elastic_block_store.get("volumeID", ""))
    if spec.gce_persistent_disk is not None:
        return MIGRATED[DiskKind.GCE], str(spec.gce_persistent_disk.get("pdName", ""))
    return "", ""


def _size(amounts: Mapping[str, int]) -> int:
    return amounts.get(names.STORAGE, 0)


def _terms(required: NodeSelectorModel | None, path: FieldPath) -> tuple[NodeTerm, ...] | None:
    return None if required is None else node_terms(required, path)
