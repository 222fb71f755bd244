"""The smallest change of a pod's size after which it fits: fewer CPUs, less memory, or CPUs in whole cores."""

from collections.abc import Iterator, Sequence
from typing import Final

from koord_numa.core.explain import cpus_text
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, MEMORY, MILLI
from koord_numa.core.value_objects import replace
from koord_numa.view.advice.probe import Probe, Remedy, where
from koord_numa.view.text import short_amounts

TRIES: Final = 12
"""So many sizes are tried downwards from the largest that may fit."""

LARGER: Final = 7
"""So many CPUs more are tried: kubelets with ``full-pcpus-only`` take whole cores only, of up to eight threads."""


def changed_sizes(probe: Probe) -> Iterator[Remedy]:
    """A few CPUs more, where whole cores are missing; the most CPUs that fit; the most memory that fits with all CPUs."""
    container = _largest(probe.pod.request.containers, CPU)
    if container is not None:
        yield from _cpus(probe, container)
    container = _largest(probe.pod.request.containers, MEMORY)
    if container is not None:
        yield from _memory(probe, container)


def _cpus(probe: Probe, container: Container) -> Iterator[Remedy]:
    asked = container.requests[CPU] // MILLI
    total = effective_requests(probe.pod.request).get(CPU, 0) // MILLI
    for cpus in range(asked + 1, asked + 1 + LARGER):
        placement = probe.fits_on_one(_with(probe.pod.request, container, CPU, cpus * MILLI))
        if placement is not None:
            yield Remedy(
                "size", placement.node, f"{_say(container, cpus, asked)} fits on {where(placement)} (whole cores)"
            )
            break
    room = _bound(probe, CPU, MILLI)
    top = min(asked - 1, room - (total - asked)) if room else asked - 1
    for cpus in range(top, max(0, top - TRIES), -1):
        placement = probe.fits_on_one(_with(probe.pod.request, container, CPU, cpus * MILLI))
        if placement is not None:
            yield Remedy("size", placement.node, f"{_say(container, cpus, asked)} fits on {where(placement)}")
            break


def _memory(probe: Probe, container: Container) -> Iterator[Remedy]:
    asked = container.requests[MEMORY]
    room = _bound(probe, MEMORY, 1)
    for amount in (room, room * 9 // 10, asked // 2, asked // 4):
        rounded = amount >> 20 << 20  # whole mebibytes
        if not 0 < rounded < asked:
            continue
        placement = probe.fits_on_one(_with(probe.pod.request, container, MEMORY, rounded))
        if placement is not None:
            less, all_of_it = short_amounts({MEMORY: rounded}), short_amounts({MEMORY: asked})
            text = f"container {container.name} with {less} memory instead of {all_of_it} fits on {where(placement)}"
            yield Remedy("size", placement.node, text)
            return


def _say(container: Container, cpus: int, asked: int) -> str:
    return f"container {container.name} with {cpus_text(cpus)} instead of {asked}"


def _bound(probe: Probe, resource: str, unit: int) -> int:
    """The most of a resource that the refusals speak of, 0 where none does."""
    spoken = [probe.rejections[node].largest.get(resource, 0) for node in probe.closest if node in probe.rejections]
    free = [
        one.free
        for node in probe.closest
        for one in (probe.rejections[node].numbers if node in probe.rejections else ())
        if one.resource == resource
    ]
    return max([*spoken, *free], default=0) // unit


def _largest(containers: Sequence[Container], resource: str) -> Container | None:
    """The application container that asks for most of a resource."""
    apps = [one for one in containers if one.kind is ContainerKind.APP and one.requests.get(resource)]
    return max(apps, key=lambda one: one.requests[resource], default=None)


def _with(request: PodRequest, container: Container, resource: str, amount: int) -> PodRequest:
    """The request with another size of one container; a limit that equalled the request stays equal."""
    limits = dict(container.limits)
    if limits.get(resource) == container.requests.get(resource):
        limits[resource] = amount
    changed = replace(container, requests={**container.requests, resource: amount}, limits=limits)
    containers = tuple(changed if one is container else one for one in request.containers)
    return replace(request, containers=containers)
