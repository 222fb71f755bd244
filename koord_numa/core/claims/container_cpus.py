"""CPUs by claim beside the CPU requests of the containers that use them: what dra-driver-cpu compares before it lets a container start."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from koord_numa.core.claims.cpus import cpu_count
from koord_numa.core.claims.search.allocation import Allocation
from koord_numa.core.objects.request import Container
from koord_numa.core.resources import CPU, MILLI

_TOLERATED: Final = 10
"""Milli-CPU by which the two may differ (dra-driver-cpu, 0.01 CPUs)."""

_FEWEST_SHARES: Final = 2
"""CPU shares of a container that requests none: it is not compared. So many milli-CPU have no more shares."""


def unequal_cpus(containers: Iterable[Container], allocations: Mapping[str, Allocation]) -> Iterator[str]:
    """
    A sentence for each container that the driver would not let start. ``allocations`` are by entry of the pod's ``resourceClaims``; a
    container with claims beside these is not judged.
    """
    for container in containers:
        if not container.claims or any(entry not in allocations for entry, _ in container.claims):
            continue
        cpus = sum(_cpus(allocations[entry], request) for entry, request in container.claims)
        requested = container.requests.get(CPU, 0)
        differs = abs(requested - MILLI * cpus) > _TOLERATED
        if cpus and requested > _FEWEST_SHARES and differs:
            yield (
                f"container {container.name} requests {requested / MILLI:g} CPUs and claims {cpus}, "
                "so that dra-driver-cpu does not let it start"
            )


def _cpus(allocation: Allocation, request: str) -> int:
    """Return the number of CPUs of one request, of all for an empty name; alternatives count as their request."""
    return sum(
        cpu_count(result)
        for result in allocation.results
        if request in ("", result.request, result.request.partition("/")[0])
    )
