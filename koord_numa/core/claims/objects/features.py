"""Feature gates of dynamic resource allocation, as a cluster may have them switched off."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Features:
    """The gates of Kubernetes 1.36 with their defaults (``featureGates``). Fields behind a gate that is off are refused or do nothing."""

    admin_access: bool = True
    binding_conditions: bool = True
    consumable_capacity: bool = True
    device_taints: bool = True
    extended_resource: bool = True
    partitionable_devices: bool = True
    prioritized_list: bool = True

    @property
    def stable_allocator(self) -> bool:
        """
        Whether kube-scheduler uses the allocator of gates that are locked, which knows neither distinctAttribute nor capacity requests
        (dynamic-resource-allocation/structured, ``NewAllocator``).
        """
        return not self.consumable_capacity and not self.binding_conditions


ALL_FEATURES = Features()
