"""Do the pod's effective requests fit into what is left of the node (kube-scheduler's NodeResourcesFit)?"""

from collections.abc import Mapping

from koord_numa.core.explain import bare_amount, needs_text
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, ResourceList

# The order in which kube-scheduler's fitsRequest checks, so that the same resource is named first.
_ORDER = {PODS: 0, CPU: 1, MEMORY: 2, EPHEMERAL_STORAGE: 3}


def has_room(wanted: ResourceList, allocatable: ResourceList, held: Mapping[str, int], pods: int) -> bool:
    """Would ``fits_resources`` let it pass? Without finding words for a refusal."""
    limit = allocatable.get(PODS)
    return (limit is None or pods < limit) and not _short(wanted, allocatable, held)


def _short(wanted: ResourceList, allocatable: ResourceList, held: Mapping[str, int]) -> list[str]:
    return [
        name for name, amount in wanted.items() if amount > 0 and amount > allocatable.get(name, 0) - held.get(name, 0)
    ]


def fits_resources(
    wanted: ResourceList, allocatable: ResourceList, held: Mapping[str, int], pods: int
) -> Rejection | None:
    """
    ``wanted`` must fit into ``allocatable`` minus ``held``, and one more pod beside the ``pods`` that are there.

    The first resource that does not fit is named: pods, cpu, memory, ephemeral-storage, then the others by name. A node that
    does not list a resource has none of it; a node that does not list ``pods`` takes any number.
    """
    limit = allocatable.get(PODS)
    if limit is not None and pods + 1 > limit:
        return Rejection(Reason.RESOURCES, "Too many pods", f"{pods} of {limit} pods are there")
    short = _short(wanted, allocatable, held)
    if not short:
        return None
    name = min(short, key=lambda name: (_ORDER.get(name, 4), name))
    amount, there = wanted[name], allocatable.get(name, 0)
    free = max(0, there - held.get(name, 0))
    detail = f"needs {needs_text({name: amount})}, {bare_amount(name, free)} of {bare_amount(name, there)} free"
    # More than the node has in all cannot be made free by evicting pods.
    return Rejection(Reason.RESOURCES, f"Insufficient {name}", detail, resolvable=amount <= there)
