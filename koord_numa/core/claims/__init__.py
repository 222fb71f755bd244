"""
Dynamic resource allocation: devices of one node for the claims of a pod (structured parameters of resource.k8s.io/v1).

``inventory`` holds the devices that drivers publish, ``pools`` the pools of one node, and ``demands`` the requests in
normal form. ``allocator.allocate`` decides. Claims and allocations as objects are in ``core.objects.claims``.
"""

from koord_numa.core.claims.allocator import NO_SOLUTION
from koord_numa.core.claims.cpus import (
    CAPACITY,
    CPU_ID,
    DRIVER,
    NANO,
    CpuSite,
    cpu_count,
    cpus_of,
    is_cpu_device,
    unequal_cpus,
)
from koord_numa.core.claims.demands import count_devices
from koord_numa.core.claims.device_hints import MOST_STEPS, ClaimDevices, Found, ids_text
from koord_numa.core.claims.explain import numbers_of, runs_short
from koord_numa.core.claims.extended_resources import (
    IN_MEMORY,
    ClassByResource,
    ExtendedClaim,
    RequestMapping,
    Served,
    claims_at,
    class_by_resource,
    extended_claim,
    extended_requests,
    name_classes,
    served_by_claim,
    without,
)
from koord_numa.core.claims.inventory import (
    NOWHERE,
    Attribute,
    Capacity,
    CapacityPolicy,
    CapacityRange,
    Device,
    DeviceTaintRule,
    NodeAllocatable,
    NodeChoice,
    ResourceSlice,
    TaintRules,
)
from koord_numa.core.claims.node_allocatable import AllocatableError, added_amounts, check_pod_level, counted_with
from koord_numa.core.claims.pools import (
    SELECTOR_LIMITS,
    BudgetUsedError,
    NodeDevices,
    Pool,
    SelectorBudget,
    Selectors,
    TurnOverError,
    gather_pools,
)

__all__ = [
    "CAPACITY",
    "CPU_ID",
    "DRIVER",
    "IN_MEMORY",
    "MOST_STEPS",
    "NANO",
    "NOWHERE",
    "NO_SOLUTION",
    "SELECTOR_LIMITS",
    "AllocatableError",
    "Attribute",
    "BudgetUsedError",
    "Capacity",
    "CapacityPolicy",
    "CapacityRange",
    "ClaimDevices",
    "ClassByResource",
    "CpuSite",
    "Device",
    "DeviceTaintRule",
    "ExtendedClaim",
    "Found",
    "NodeAllocatable",
    "NodeChoice",
    "NodeDevices",
    "Pool",
    "RequestMapping",
    "ResourceSlice",
    "SelectorBudget",
    "Selectors",
    "Served",
    "TaintRules",
    "TurnOverError",
    "added_amounts",
    "check_pod_level",
    "claims_at",
    "class_by_resource",
    "count_devices",
    "counted_with",
    "cpu_count",
    "cpus_of",
    "extended_claim",
    "extended_requests",
    "gather_pools",
    "ids_text",
    "is_cpu_device",
    "name_classes",
    "numbers_of",
    "runs_short",
    "served_by_claim",
    "unequal_cpus",
    "without",
]
