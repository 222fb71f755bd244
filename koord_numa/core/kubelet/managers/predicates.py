"""The kubelet's last admission check: does the pod fit into what the Node object says is allocatable?"""

from typing import Final

from koord_numa.core.kubelet.managers.results import OUT_OF, AdmitRejection
from koord_numa.core.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, ResourceList

_FIRST: Final = (PODS, CPU, MEMORY, EPHEMERAL_STORAGE)


def check_node_fit(requests: ResourceList, requested: ResourceList, allocatable: ResourceList) -> AdmitRejection | None:
    """
    The refusal that names the first resource that is short, or ``None``.

    ``requested`` sums the pods present and counts them as ``pods``. Extended resources that the node does not list are not
    checked (fitsRequest of the scheduler framework, called by the kubelet after removeMissingExtendedResources).
    """
    short: dict[str, tuple[int, int]] = {}
    has, held = allocatable.get, requested.get
    pods = has(PODS, 0) - held(PODS, 0)
    if pods < 1:
        short[PODS] = 1, pods
    for resource, amount in requests.items():
        if amount <= has(resource, 0) - held(resource, 0) or not amount or resource == PODS:
            continue
        # An extended resource (with a slash) that the node does not list was removed by the kubelet before the check.
        if "/" not in resource or resource in allocatable:
            short[resource] = amount, has(resource, 0) - held(resource, 0)
    if not short:
        return None
    # ``PODS`` first, the rest in a fixed order: the first that is short names the reason, which must not depend on map order.
    resource = next((name for name in _FIRST if name in short), None) or min(short)
    amount, free = short[resource]
    return AdmitRejection(OUT_OF + resource, f"{resource}: needed {amount}, free {free}")
