"""
Convert JSON objects of Kubernetes and Koordinator to core types and back. Defines all annotation and label names.

The modules ``names``, ``kubelet_state``, ``raw_json`` and ``proto`` are public too. Others are imported on first use of
a name of the facade: the node agent has little memory and needs the names, but not the parsers and their models.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from koord_numa.wire.devices import parse_devices
    from koord_numa.wire.errors import FieldPath, WireError, closest, is_near, plain, quoted, sentence_of
    from koord_numa.wire.gangs import KINDS, names_gang, parse_pod_group
    from koord_numa.wire.misspelled_keys import unread_workload_keys
    from koord_numa.wire.nodes import normalized, parse_node
    from koord_numa.wire.parsing import is_nested_deeper, rfc3339, rfc3339_micro, shortened
    from koord_numa.wire.pod_annotations import quantities, resource_status
    from koord_numa.wire.pods import PriorityClassObject, parse_pod, parse_priority_class, with_priority
    from koord_numa.wire.rebinds import automatic_rebind, parse_rebind, rebind_status, with_cpus
    from koord_numa.wire.resource_claims import (
        FINALIZER,
        ClaimTemplate,
        allocation_json,
        claim_amounts_json,
        extended_claim_json,
        mappings_json,
        parse_claim_template,
        parse_device_class,
        parse_resource_claim,
    )
    from koord_numa.wire.resource_slices import parse_resource_slice, parse_taint_rule
    from koord_numa.wire.topologies import parse_topology
    from koord_numa.wire.volumes import (
        parse_attachment,
        parse_claim,
        parse_csi_driver,
        parse_csi_node,
        parse_storage_capacity,
        parse_storage_class,
        parse_volume,
    )
    from koord_numa.wire.workloads import parse_budget, parse_namespace, parse_workload

_MODULES: Final = {
    "devices": "parse_devices",
    "errors": "FieldPath WireError closest is_near plain quoted sentence_of",
    "gangs": "KINDS names_gang parse_pod_group",
    "misspelled_keys": "unread_workload_keys",
    "nodes": "normalized parse_node",
    "parsing": "is_nested_deeper rfc3339 rfc3339_micro shortened",
    "pod_annotations": "quantities resource_status",
    "pods": "PriorityClassObject parse_pod parse_priority_class with_priority",
    "rebinds": "automatic_rebind parse_rebind rebind_status with_cpus",
    "resource_claims": "ClaimTemplate FINALIZER allocation_json claim_amounts_json extended_claim_json mappings_json"
    " parse_claim_template parse_device_class parse_resource_claim",
    "resource_slices": "parse_resource_slice parse_taint_rule",
    "topologies": "parse_topology",
    "volumes": "parse_attachment parse_claim parse_csi_driver parse_csi_node parse_storage_capacity"
    " parse_storage_class parse_volume",
    "workloads": "parse_budget parse_namespace parse_workload",
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "FINALIZER",
    "KINDS",
    "ClaimTemplate",
    "FieldPath",
    "PriorityClassObject",
    "WireError",
    "allocation_json",
    "automatic_rebind",
    "claim_amounts_json",
    "closest",
    "extended_claim_json",
    "is_near",
    "is_nested_deeper",
    "mappings_json",
    "names_gang",
    "normalized",
    "parse_attachment",
    "parse_budget",
    "parse_claim",
    "parse_claim_template",
    "parse_csi_driver",
    "parse_csi_node",
    "parse_device_class",
    "parse_devices",
    "parse_namespace",
    "parse_node",
    "parse_pod",
    "parse_pod_group",
    "parse_priority_class",
    "parse_rebind",
    "parse_resource_claim",
    "parse_resource_slice",
    "parse_storage_capacity",
    "parse_storage_class",
    "parse_taint_rule",
    "parse_topology",
    "parse_volume",
    "parse_workload",
    "plain",
    "quantities",
    "quoted",
    "rebind_status",
    "resource_status",
    "rfc3339",
    "rfc3339_micro",
    "sentence_of",
    "shortened",
    "unread_workload_keys",
    "with_cpus",
    "with_priority",
]


def __getattr__(name: str) -> Any:
    """Import the module that has the name (PEP 562)."""
    if module := _MODULE_OF.get(name):
        return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
