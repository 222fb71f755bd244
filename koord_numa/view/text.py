"""Short texts for tables: requests, policies and NUMA nodes of pods."""

import re
from collections.abc import Iterable, Iterator

from koord_numa.core.claims import cpu_count, cpus_of, is_cpu_device
from koord_numa.core.explain import amounts_text
from koord_numa.core.objects.claims import Allocation
from koord_numa.core.objects.devices import devices_text
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import CpuBindPolicy, NumaPolicy
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, MEMORY, PODS, ResourceList

NONE = "-"
_FIRST = (CPU, MEMORY)

SHOWN_CPU_DEVICES = 4
"""Maximum number of dra.cpu devices that are listed for one claim. Individual CPUs are separate devices."""

_PARTS = re.compile(r"(\D*)(\d*)", re.ASCII)


def short_amounts(amounts: ResourceList) -> str:
    """
    Return amounts as ``12 CPU 48Gi 1 gpu``.

    CPUs and memory come first, then other resources without their domain. The text is ``-`` for no amounts.
    """
    parts = []
    for name in sorted(amounts, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)):
        number, _, unit = amounts_text({name: amounts[name]}).partition(" ")
        if not amounts[name] or name == PODS:
            continue
        parts.append(f"{number} CPU" if name == CPU else number if name == MEMORY else f"{number} {_bare(unit)}")
    return " ".join(parts) or NONE


def asked(pod: Pod) -> str:
    """Return the requests of the pod as text."""
    return short_amounts(effective_requests(pod.request))


def policies(pod: Pod) -> str:
    """Return the CPU bind policy and the NUMA policy of the pod as text."""
    bind = pod.request.bind
    named = [str(bind.required if bind.required is not CpuBindPolicy.NONE else bind.preferred)]
    if pod.request.numa.policy is not NumaPolicy.NONE:
        named.append(str(pod.request.numa.policy))
    return " ".join(part for part in named if part) or NONE


def numa_text(numa: Iterable[int]) -> str:
    """Return NUMA nodes as ``0,1``, or ``-`` if they are unknown."""
    return ",".join(map(str, numa)) or NONE


def natural(name: str) -> tuple[list[tuple[str, int]], str]:
    """Return a sort key that compares digits as numbers: ``node-2`` before ``node-10``."""
    return [(text, int(digits or -1)) for text, digits in _PARTS.findall(name)], name


def count(number: int, noun: str) -> str:
    """Return a number with a noun: ``1 pod``, ``2 pods``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _bare(resource: str) -> str:
    return resource.rpartition("/")[2]


def device_texts(placement: Placement) -> Iterator[str]:
    """Yield devices by id, and devices and CPUs of claims: ``gpu 0,1``, ``gpu.example.com gpu-1``, ``CPUs 4-7 by claim``."""
    if placement.devices:
        yield devices_text(placement.devices)
    for allocation in placement.allocations:
        yield from (
            f"{it.device.driver} {it.device.device}" for it in allocation.results if not is_cpu_device(it.device)
        )
        if cpus := cpus_of(allocation):
            yield f"CPUs {cpus} by claim"
        elif chosen := cpus_by_driver(allocation):
            yield f"{chosen} by claim"


def cpus_by_driver(allocation: Allocation) -> str:
    """
    Return the CPUs of devices where the driver chooses the ids, such as ``4 CPUs of cpudevnuma000``.

    Empty without CPUs.
    """
    groups: dict[str, int] = {}
    for result in allocation.results:
        if is_cpu_device(result.device):
            groups[result.device.device] = groups.get(result.device.device, 0) + cpu_count(result)
    names = list(groups)
    listed = ", ".join(names[:SHOWN_CPU_DEVICES]) + (", ..." if len(names) > SHOWN_CPU_DEVICES else "")
    return f"{count(sum(groups.values()), 'CPU')} of {listed}" if groups else ""
