"""One hostile object after the other, each of a kind that the scheduler watches."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from tests.chaos.hostile.devices import Devices
from tests.chaos.hostile.machines import Machines
from tests.chaos.hostile.storage import Storage
from tests.chaos.hostile.values import Values
from tests.chaos.hostile.workloads import Workloads
from tests.e2e.world import JsonObject

RESOURCES: Final[Mapping[str, str]] = {
    "Pod": "pods",
    "Node": "nodes",
    "Namespace": "namespaces",
    "NodeResourceTopology": "noderesourcetopologies.topology.node.k8s.io",
    "Device": "devices.scheduling.koordinator.sh",
    "RebindResource": "rebindresources.scheduling.koordinator.sh",
    "PodDisruptionBudget": "poddisruptionbudgets.policy",
    "Service": "services",
    "ReplicationController": "replicationcontrollers",
    "ReplicaSet": "replicasets.apps",
    "StatefulSet": "statefulsets.apps",
    "PersistentVolume": "persistentvolumes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "StorageClass": "storageclasses.storage.k8s.io",
    "CSINode": "csinodes.storage.k8s.io",
    "CSIDriver": "csidrivers.storage.k8s.io",
    "CSIStorageCapacity": "csistoragecapacities.storage.k8s.io",
    "VolumeAttachment": "volumeattachments.storage.k8s.io",
    "ResourceSlice": "resourceslices.resource.k8s.io",
    "DeviceClass": "deviceclasses.resource.k8s.io",
    "ResourceClaim": "resourceclaims.resource.k8s.io",
}
"""Every kind that the scheduler watches."""


class Hostile:
    """Everything comes from one seed."""

    def __init__(self, dice: Random) -> None:
        self._values = Values(dice)
        self._count = 0
        self._makers = self._weighted()

    def any_object(self) -> JsonObject:
        """One object. Some have names that exist: then it is what that object becomes."""
        self._count += 1
        self._values.begin()
        make = self._values.dice.choice(self._makers)
        return make(f"hostile-{self._count}")

    def _weighted(self) -> list[Callable[[str], JsonObject]]:
        values = self._values
        workloads, machines, storage, devices = Workloads(values), Machines(values), Storage(values), Devices(values)
        weights: tuple[tuple[int, Callable[[str], JsonObject]], ...] = (
            (12, workloads.pod),
            (4, machines.node),
            (6, machines.topology),
            (4, machines.devices),
            (2, machines.rebind),
            (2, workloads.budget),
            (1, workloads.namespace),
            (2, workloads.service),
            (1, workloads.replication_controller),
            (1, workloads.replica_set),
            (1, workloads.stateful_set),
            (2, storage.volume),
            (2, storage.claim),
            (1, storage.storage_class),
            (1, storage.csi_node),
            (1, storage.driver),
            (1, storage.capacity),
            (1, storage.attachment),
            (2, devices.resource_slice),
            (1, devices.device_class),
            (3, devices.claim),
        )
        return [make for weight, make in weights for _ in range(weight)]
