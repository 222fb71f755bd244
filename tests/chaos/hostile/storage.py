"""Volumes, claims and what CSI drivers say."""

from tests.chaos.hostile.values import Values
from tests.e2e.world import JsonObject

STORAGE = "storage.k8s.io/v1"


class Storage:
    """PersistentVolumes, claims on them, StorageClasses, CSINodes, CSIDrivers, CSIStorageCapacities and VolumeAttachments."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def volume(self, name: str) -> JsonObject:
        """A PersistentVolume."""
        values = self._values
        spec: JsonObject = {
            "capacity": {"storage": values.quantity()},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": self._class(),
            "nodeAffinity": {"required": values.node_selector()},
            "csi": {"driver": "example.com", "volumeHandle": values.word() or "h"},
        }
        if values.likely(0.3):
            spec["claimRef"] = {"namespace": "default", "name": self._name(), "uid": values.word()}
        return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": values.metadata(name), "spec": spec}

    def claim(self, _: str) -> JsonObject:
        """A PersistentVolumeClaim by one of a few names, which pods use."""
        values = self._values
        spec: JsonObject = {
            "accessModes": [values.one("ReadWriteOnce", "ReadWriteOncePod")],
            "storageClassName": self._class(),
            "resources": {"requests": {"storage": values.quantity()}},
            "selector": {"matchExpressions": values.requirements()},
        }
        if values.likely(0.5):
            spec["volumeName"] = self._name()
        metadata = values.metadata(self._name(), namespace="default")
        return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}

    def storage_class(self, _: str) -> JsonObject:
        """A StorageClass."""
        values = self._values
        terms = [{"matchLabelExpressions": [{"key": values.key(), "values": ["a"] * values.many(200)}]}]
        return {
            "apiVersion": STORAGE,
            "kind": "StorageClass",
            "metadata": values.metadata(self._class()),
            "provisioner": values.one("example.com", "kubernetes.io/no-provisioner"),
            "volumeBindingMode": values.one("Immediate", "WaitForFirstConsumer"),
            "allowedTopologies": terms * values.many(50),
        }

    def csi_node(self, _: str) -> JsonObject:
        """Return a CSINode with a limit of volumes."""
        values = self._values
        drivers = [
            {"name": f"driver-{number}", "nodeID": "n", "allocatable": {"count": values.one(0, 1, 2**31 - 1)}}
            for number in values.several(500)
        ]
        metadata = values.metadata(values.node())
        return {"apiVersion": STORAGE, "kind": "CSINode", "metadata": metadata, "spec": {"drivers": drivers}}

    def driver(self, _: str) -> JsonObject:
        """Return a CSIDriver with or without capacity tracking."""
        metadata, spec = self._values.metadata("example.com"), {"storageCapacity": self._values.likely(0.5)}
        return {"apiVersion": STORAGE, "kind": "CSIDriver", "metadata": metadata, "spec": spec}

    def capacity(self, name: str) -> JsonObject:
        """Return a CSIStorageCapacity."""
        values = self._values
        return {
            "apiVersion": STORAGE,
            "kind": "CSIStorageCapacity",
            "metadata": values.metadata(name, namespace="default"),
            "storageClassName": self._class(),
            "capacity": values.quantity(),
            "maximumVolumeSize": values.quantity(),
            "nodeTopology": {"matchExpressions": values.requirements()},
        }

    def attachment(self, name: str) -> JsonObject:
        """A volume on a node."""
        values = self._values
        spec = {
            "attacher": "example.com",
            "nodeName": values.node(),
            "source": {"persistentVolumeName": self._name()},
        }
        return {"apiVersion": STORAGE, "kind": "VolumeAttachment", "metadata": values.metadata(name), "spec": spec}

    def _name(self) -> str:
        return f"hostile-{self._values.dice.randrange(9)}"

    def _class(self) -> str:
        return str(self._values.one("hostile-a", "hostile-b", "absent"))
