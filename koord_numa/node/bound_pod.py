"""
The fields of a pod that the kubelet's state depends on: its UIDs, and the containers with exclusive CPUs.

Parsed without the models of ``wire``, which would double the agent's memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koord_numa.core.resources import CPU, MILLI, amount
from koord_numa.wire import names

ENDED_PHASES: Final = frozenset({"Succeeded", "Failed"})
_RESIZE_CONDITIONS: Final = frozenset({"PodResizePending", "PodResizeInProgress"})


@dataclass(frozen=True, slots=True)
class BoundPod:
    """
    A pod object of this node.

    ``kubelet_uid`` is the UID in the kubelet's files: for a static pod, the one in the annotation of its mirror pod.
    ``pinned`` are the containers that a static CPU manager gives exclusive CPUs: Guaranteed, with an integral number of
    CPUs.
    """

    namespace: str
    name: str
    uid: str
    kubelet_uid: str
    pinned: frozenset[str] = frozenset()
    ended: bool = False
    deleting: bool = False
    started: bool = False  # the kubelet has reported a container that runs

    @property
    def key(self) -> tuple[str, str]:
        """Return namespace and name."""
        return self.namespace, self.name


def bound_pod(pod: Mapping[str, Any]) -> BoundPod:
    """Parse a pod. Malformed fields count as absent."""
    metadata, status = _object(pod, "metadata"), _object(pod, "status")
    uid = str(metadata.get("uid", ""))
    statuses = status.get("containerStatuses") or ()
    return BoundPod(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=uid,
        kubelet_uid=str(_object(metadata, "annotations").get(names.MIRROR) or uid),
        pinned=frozenset(_pinned(_object(pod, "spec"), status)),
        ended=status.get("phase") in ENDED_PHASES,
        deleting=bool(metadata.get("deletionTimestamp")),
        started=any("running" in (entry.get("state") or {}) for entry in statuses),
    )


def _object(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _pinned(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the containers that podresources must list with CPUs (``guaranteedCPUs`` in the kubelet's cpumanager/policy_static.go)."""
    if status.get("qosClass") != "Guaranteed":
        return
    # Pod-level resources: exclusive CPUs depend on feature gates. Resize: the spec may differ from the amount that the
    # kubelet has admitted.
    resized = status.get("resize") or any(
        condition.get("type") in _RESIZE_CONDITIONS for condition in status.get("conditions") or ()
    )
    if spec.get("resources") or resized:
        return
    # podresources does not list init containers other than sidecars.
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    for container in (*sidecars, *(spec.get("containers") or ())):
        try:
            limit = amount(CPU, _object(_object(container, "resources"), "limits").get(CPU) or 0)
        except (ValueError, TypeError):
            continue
        if limit and limit % MILLI == 0:
            yield str(container.get("name", ""))
