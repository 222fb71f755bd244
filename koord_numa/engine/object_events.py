"""Events on quarantined objects, and on pods that were resized in place."""

from collections.abc import Mapping
from typing import Final

from koord_numa.core.explain import amounts_text, bare_amount
from koord_numa.core.objects.request import Pod
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU
from koord_numa.engine.containment import Subject
from koord_numa.engine.pod_status import PodConditions
from koord_numa.engine.queue.pending_pod import PendingPods
from koord_numa.ports import ObjectReference, Recorder

QUARANTINED: Final = "Quarantined"

_STORAGE: Final = "storage.k8s.io/v1"
_DEVICES: Final = "resource.k8s.io/v1"

KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "namespace": ("Namespace", "v1"),
    "claim": ("PersistentVolumeClaim", "v1"),
    "volume": ("PersistentVolume", "v1"),
    "storage class": ("StorageClass", _STORAGE),
    "CSINode": ("CSINode", _STORAGE),
    "CSIDriver": ("CSIDriver", _STORAGE),
    "capacity": ("CSIStorageCapacity", _STORAGE),
    "attachment": ("VolumeAttachment", _STORAGE),
    "budget": ("PodDisruptionBudget", "policy/v1"),
    "resource claim": ("ResourceClaim", _DEVICES),
    "resource slice": ("ResourceSlice", _DEVICES),
    "device class": ("DeviceClass", _DEVICES),
    "device taint rule": ("DeviceTaintRule", _DEVICES),
    "Service": ("Service", "v1"),
    "ReplicationController": ("ReplicationController", "v1"),
    "ReplicaSet": ("ReplicaSet", "apps/v1"),
    "StatefulSet": ("StatefulSet", "apps/v1"),
    "rebind": ("RebindResource", "scheduling.koordinator.sh/v1alpha1"),
}
"""Kind and API version of subjects that are neither pods nor nodes."""


def tell_quarantine(
    waiting: PendingPods, conditions: PodConditions, recorder: Recorder, subject: Subject, why: str
) -> None:
    """
    Report a quarantine: in the condition of a waiting pod, otherwise as an event on the object.

    Every replica reports it once, because most objects are read before a replica leads.
    """
    message = f"the {subject.kind} {subject.name} is left alone until it changes: {why}"
    pending = waiting.get(subject.uid)
    if pending is not None:
        conditions.waits(pending, message)
        return
    if subject.kind == "pod":
        return  # reported by another event (``ContainedParser``, ``Cache.set_broken``)
    known = KINDS.get(subject.kind)
    if known is None:
        recorder.node_event(subject.uid, warning=True, reason=QUARANTINED, message=message)
        return
    namespace, _, name = subject.name.rpartition("/")
    # If the name replaces the UID, the UID is unknown.
    uid = "" if subject.uid == subject.name else subject.uid
    about = ObjectReference(known[0], namespace, name, uid, known[1])
    recorder.object_event(about, warning=True, reason=QUARANTINED, message=message)


RESIZE_KEEPS_CPUS = "ResizeKeepsCPUs"
"""Reason of the event."""


def resize_message(before: Pod | None, pod: Pod) -> str:
    """
    Return the message of the event, empty if no event is needed.

    A resize changes only the counted amounts of a pod. Its CPUs were chosen at placement and stay until the pod is replaced.
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
