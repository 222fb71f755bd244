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


ALL_FEATURES = Features()
