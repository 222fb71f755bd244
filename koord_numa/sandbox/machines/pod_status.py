"""Pod statuses as a kubelet writes them: running, rejected, terminated."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

from koord_numa.sandbox.machines.hardware.topologies import Json

# conditions that the kubelet manages (pkg/kubelet/status/generate.go)
_OWN_CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")


def running(pod: Mapping[str, Any], host: str, address: str, now: str) -> Json:
    """Return the status of a pod whose containers run and are ready, after its init containers have completed."""
    spec = pod.get("spec") or {}
    return {
        "phase": "Running",
        "conditions": [*_others(pod), *_conditions("True", now)],
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": now,
        "initContainerStatuses": [
            _container(pod, item, now, runs=item.get("restartPolicy") == "Always")
            # Sidecars (init containers with restartPolicy Always) keep running; other init containers have completed.
            for item in spec.get("initContainers") or ()
        ],
        "containerStatuses": [_container(pod, item, now, runs=True) for item in spec.get("containers") or ()],
    }


def refused(reason: str, message: str, now: str) -> Json:
    """Return the status of a pod that the kubelet did not admit."""
    text = f"Pod was rejected: {message}"
    # No container statuses: the kubelet rejects before it creates containers (kubelet.go rejectPod).
    return {"phase": "Failed", "reason": reason, "message": text, "startTime": now}


def ended(pod: Mapping[str, Any], phase: str, now: str) -> Json:
    """Return the status of a pod whose containers have terminated, with phase ``Succeeded`` or ``Failed``."""
    spec = pod.get("spec") or {}
    return {
        "phase": phase,
        "conditions": [*_others(pod), *_conditions("False", now)],
        "containerStatuses": [
            _container(pod, item, now, runs=False, code=0 if phase == "Succeeded" else 1)
            for item in spec.get("containers") or ()
        ],
    }


def _others(pod: Mapping[str, Any]) -> Iterable[Any]:
    """Yield the conditions that the kubelet does not manage, such as PodScheduled."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") not in _OWN_CONDITIONS:
            yield condition


def _conditions(ready: str, now: str) -> Iterable[Json]:
    for kind in _OWN_CONDITIONS:
        # The pod sandbox outlives its containers, and an initialized pod stays initialized.
        status = ready if kind in ("Ready", "ContainersReady") else "True"
        yield {"type": kind, "status": status, "lastTransitionTime": now}


def container_id(pod_uid: str, name: str) -> str:
    """Return the runtime's id of a container: 64 hexadecimal digits, as in containerd and CRI-O."""
    # Derived from uid and name, so that runs are reproducible.
    return sha256(f"{pod_uid}/{name}".encode()).hexdigest()


def _container(pod: Mapping[str, Any], container: Mapping[str, Any], now: str, *, runs: bool, code: int = 0) -> Json:
    image = container.get("image") or "image"
    name = container.get("name") or ""
    full_id = f"containerd://{container_id(str(pod['metadata'].get('uid', '')), name)}"
    ended_state = {
        "terminated": {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": now,
            "finishedAt": now,
            "containerID": full_id,
        }
    }
    return {
        "name": name,
        "image": image,
        "imageID": image,
        "containerID": full_id,
        "ready": runs,
        "started": runs,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}} if runs else ended_state,
    }
