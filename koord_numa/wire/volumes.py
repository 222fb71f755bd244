"""Read persistent volumes, claims, storage classes and what CSI drivers report."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

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
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.metadata import head, version
from koord_numa.wire.parsing import EnumReader, Int64, Problems, Quantity, Strict, read, requested, supplied, supply
from koord_numa.wire.selectors import LabelSelectorModel, NodeSelectorModel, label_selector, node_terms


class CapacityModel(Strict):
    """A CSIStorageCapacity has no spec either."""

    storage_class_name: str = ""
    node_topology: LabelSelectorModel | None = None
    capacity: Quantity | None = None
    maximum_volume_size: Quantity | None = None


class VolumeCount(Strict):
    """How many volumes a driver can attach to a node."""

    count: Int64 | None = None


class CsiNodeDriver(Strict):
    """One driver on a node."""

    name: str
    allocatable: VolumeCount | None = None


class CsiNodeSpec(Strict):
    """Spec of a CSINode."""

    drivers: list[CsiNodeDriver] | None = None


class CsiDriverSpec(Strict):
    """Spec of a CSIDriver."""

    storage_capacity: bool | None = None


class AttachmentSource(Strict):
    """What is attached: a volume by name, or an inline one."""

    persistent_volume_name: str | None = None


class AttachmentSpec(Strict):
    """Spec of a VolumeAttachment."""

    node_name: str = ""
    source: AttachmentSource | None = None


def parse_csi_node(obj: Mapping[str, Any]) -> CsiNode:
    """A CSINode. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "CSINode", problems)
    spec = problems.collect(lambda: read(CsiNodeSpec, top.body.get("spec") or {}, top.path.at("spec")), CsiNodeSpec())
    # A driver without a count has no limit (CSINode VolumeNodeResources.Count nil), which differs from 0.
    limits = {
        driver.name: driver.allocatable.count
        for driver in spec.drivers or ()
        if driver.allocatable is not None and driver.allocatable.count is not None
    }
    return CsiNode(top.name, tuple(sorted(limits.items())), problems.problem)


def parse_csi_driver(obj: Mapping[str, Any]) -> CsiDriver:
    """A CSIDriver. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "CSIDriver", problems)
    spec = problems.collect(
        lambda: read(CsiDriverSpec, top.body.get("spec") or {}, top.path.at("spec")), CsiDriverSpec()
    )
    # nil is false: without storageCapacity the scheduler does not ask for capacities (binder.go hasEnoughCapacity).
    return CsiDriver(top.name, bool(spec.storage_capacity))


def parse_storage_capacity(obj: Mapping[str, Any]) -> StorageCapacity:
    """A CSIStorageCapacity. Its name is ``namespace/name``. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "CSIStorageCapacity", problems)
    model = problems.collect(lambda: read(CapacityModel, top.body, top.path), CapacityModel())
    # As volumebinding/binder.go capacitySufficient: the largest volume where the driver says it, else all that is left.
    text = model.capacity if model.maximum_volume_size is None else model.maximum_volume_size
    largest = 0 if text is None else problems.collect(lambda: supply(names.STORAGE, text, top.path.at("capacity")), 0)
    return StorageCapacity(
        name=f"{top.namespace}/{top.name}",  # the names are generated: unique in a namespace only
        storage_class=model.storage_class_name,
        topology=problems.collect(lambda: label_selector(model.node_topology, top.path.at("nodeTopology")), None),
        largest=largest,
        problem=problems.problem,
    )


def parse_attachment(obj: Mapping[str, Any]) -> VolumeAttachment:
    """A VolumeAttachment; an inline volume has no name. Raises ``WireError`` only when it has no name itself."""
    problems = Problems()
    top = head(obj, "VolumeAttachment", problems)
    spec = problems.collect(
        lambda: read(AttachmentSpec, top.body.get("spec") or {}, top.path.at("spec")), AttachmentSpec()
    )
    return VolumeAttachment(top.name, spec.node_name, (spec.source.persistent_volume_name or "") if spec.source else "")


ZONE_SEPARATOR: Final = "__"  # a volume in several zones names them in one label

BINDING_MODES: Final = EnumReader({"Immediate": False, "WaitForFirstConsumer": True})
VOLUME_MODES: Final = EnumReader({"Filesystem": False, "Block": True})


class VolumeAffinity(Strict):
    """Which nodes reach a volume."""

    required: NodeSelectorModel | None = None


class ClaimReference(Strict):
    """The claim that a volume belongs to."""

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
    """The part of a status that says how far an object has come."""

    phase: str | None = None


class ClaimResources(Strict):
    """How much a claim asks for."""

    requests: dict[str, Quantity] | None = None


class ClaimSpec(Strict):
    """Spec of a PersistentVolumeClaim."""

    volume_name: str | None = None
    storage_class_name: str | None = None
    access_modes: list[str] | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    resources: ClaimResources | None = None
    selector: LabelSelectorModel | None = None


class LabelTerm(Strict):
    """One condition of an allowed topology."""

    key: str
    values: list[str] = Field([])


class AllowedTopology(Strict):
    """One of the topologies in which a class makes volumes."""

    match_label_expressions: list[LabelTerm] | None = None


class ClassModel(Strict):
    """A StorageClass has no spec; its fields stand at the top."""

    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[AllowedTopology] | None = None


def parse_volume(obj: Mapping[str, Any]) -> PersistentVolume:
    """A PersistentVolume. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "PersistentVolume", problems)
    path = top.path.at("spec")
    spec = problems.collect(lambda: read(VolumeSpec, top.body.get("spec") or {}, path), VolumeSpec())
    status = problems.collect(lambda: read(Phase, top.body.get("status") or {}, top.path.at("status")), Phase())
    required = spec.node_affinity.required if spec.node_affinity else None
    claim = spec.claim_ref or ClaimReference()
    driver, handle = _driver(spec)
    return PersistentVolume(
        name=top.name,
        node_terms=problems.collect(lambda: _terms(required, path.at("nodeAffinity")), None),
        zones=tuple(
            # Sorted, so that two readings of the same label are equal and cost no new evaluation.
            (key, tuple(sorted(set(top.labels[key].split(ZONE_SEPARATOR)))))
            for key in names.ZONE_LABELS
            if key in top.labels
        ),
        claim=f"{claim.namespace}/{claim.name}" if claim.name else "",
        claim_uid=claim.uid,
        # The annotation of Kubernetes before 1.6 wins over the field, on volumes as on claims (GetPersistentVolumeClass).
        storage_class=top.annotations.get(names.LEGACY_CLASS, spec.storage_class_name or ""),
        capacity=problems.collect(lambda: _size(supplied(spec.capacity, path.at("capacity"))), 0),
        access_modes=frozenset(spec.access_modes or ()),
        block=problems.collect(
            lambda: VOLUME_MODES.read(spec.volume_mode or "Filesystem", path.at("volumeMode")), False
        ),
        attributes_class=spec.volume_attributes_class_name or "",
        labels=tuple(sorted(top.labels.items())),
        # Only an Available volume may be chosen (volume FindMatchingVolume); Pending ones have not been seen by the controller.
        available=status.phase == "Available",
        # Undone by the controller if the claim goes; a volume that its owner reserved stays reserved.
        bound_by_controller=names.BOUND_BY_CONTROLLER in top.annotations,
        deleting=top.metadata.deletion_timestamp is not None,
        driver=driver,
        handle=handle,
        resource_version=version(top),
        problem=problems.problem,
    )


def parse_claim(obj: Mapping[str, Any]) -> PersistentVolumeClaim:
    """A PersistentVolumeClaim. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "PersistentVolumeClaim", problems)
    path = top.path.at("spec")
    spec = problems.collect(lambda: read(ClaimSpec, top.body.get("spec") or {}, path), ClaimSpec())
    status = problems.collect(lambda: read(Phase, top.body.get("status") or {}, top.path.at("status")), Phase())
    legacy = top.annotations.get(names.LEGACY_CLASS)
    requests = spec.resources.requests if spec.resources else None
    return PersistentVolumeClaim(
        namespace=top.namespace or "default",
        name=top.name,
        uid=top.uid,
        volume=spec.volume_name or "",
        # Both: the name alone is written by users too, and the annotation marks that the controller has agreed.
        bound=bool(spec.volume_name) and names.BIND_COMPLETED in top.annotations,
        lost=status.phase == "Lost",
        # Also when it is empty (GetPersistentVolumeClaimClass): an empty class asks for volumes without one.
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
    """A StorageClass. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "StorageClass", problems)
    model = problems.collect(lambda: read(ClassModel, top.body, top.path), ClassModel())
    mode = model.volume_binding_mode or "Immediate"  # the field's default
    return StorageClass(
        name=top.name,
        waits=problems.collect(lambda: BINDING_MODES.read(mode, top.path.at("volumeBindingMode")), False),
        provisioner="" if model.provisioner == names.NO_PROVISIONER else model.provisioner,
        topologies=tuple(_allowed(topology) for topology in model.allowed_topologies or ()),
        problem=problems.problem,
    )


def _driver(spec: VolumeSpec) -> tuple[str, str]:
    """CSI driver and handle of a volume; kinds that were once built in count as volumes of the driver that serves them."""
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


def _allowed(topology: AllowedTopology) -> NodeTerm:
    return NodeTerm(
        labels=tuple(
            Requirement(term.key, Operator.IN, tuple(sorted(term.values)))
            for term in topology.match_label_expressions or ()
        )
    )
