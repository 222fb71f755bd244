"""What CSI drivers say about nodes and storage: CSINode, CSIDriver, CSIStorageCapacity and VolumeAttachment."""

from collections.abc import Mapping
from typing import Any

from koord_numa.core.objects.volumes import CsiDriver, CsiNode, StorageCapacity, VolumeAttachment
from koord_numa.wire import names
from koord_numa.wire.metadata import head
from koord_numa.wire.parsing import Int64, Problems, Quantity, Strict, read
from koord_numa.wire.quantities import supply
from koord_numa.wire.selectors import LabelSelectorModel, label_selector


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
