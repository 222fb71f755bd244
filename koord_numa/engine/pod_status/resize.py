"""What is said to a running pod with CPUs of its own whose requests were changed in place: it keeps its CPUs."""

from koord_numa.core.explain import amounts_text, bare_amount
from koord_numa.core.objects.request import Pod
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU

RESIZE_KEEPS_CPUS = "ResizeKeepsCPUs"
"""The reason of the event."""


def resize_message(before: Pod | None, pod: Pod) -> str:
    """
    The text of the event, empty when there is nothing to say.

    Only what a pod counts for follows a resize; which CPUs it has was decided when it was placed, and stays until it is replaced.
    """
    cpus = pod.assignment.cpus if pod.assignment is not None else None
    if before is None or before.node != pod.node or not cpus:
        return ""
    former, now = effective_requests(before.request).get(CPU, 0), effective_requests(pod.request).get(CPU, 0)
    if former == now:
        return ""
    return (
        f"the pod counts {amounts_text({CPU: now})} instead of {bare_amount(CPU, former)} now and keeps its CPUs {cpus}: "
        "other CPUs need a new pod"
    )
