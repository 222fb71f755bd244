"""The request of a pod as a unit, as computed by the NodeResourceTopologyMatch plugin of scheduler-plugins."""

from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.resources import (
    add,
    largest,
    total,
)


def aligned_request(pod: PodRequest) -> dict[str, int]:
    """
    Return the request of the pod as a unit: the maximum of all app containers together and any init container, plus
    overhead.

    As computed by the plugin: sidecars count like regular init containers, and pod-level resources are ignored.
    """
    request = total(c.requests for c in pod.containers if c.kind is ContainerKind.APP)
    # Each init container or sidecar is compared with the sum of app containers: the plugin's GetPodEffectiveRequest has
    # no overlap.
    for container in pod.containers:
        if container.kind is not ContainerKind.APP:
            request = largest(request, container.requests)
    return add(request, pod.overhead)
