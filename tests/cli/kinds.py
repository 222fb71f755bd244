"""Objects besides pods that decide where pods go, in few words."""

from typing import Any

Object = dict[str, Any]


def volume(name: str, claim: str = "", node: str = "") -> Object:
    """A PersistentVolume; with ``node`` it is on that node's own disk."""
    spec: Object = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/d"}}
    if claim:
        spec["claimRef"] = {"namespace": "default", "name": claim}
    if node:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def claim(name: str, volume: str = "", storage_class: str = "", mode: str = "ReadWriteOnce") -> Object:
    """A PersistentVolumeClaim; with ``volume`` it is bound completely."""
    annotations = {"pv.kubernetes.io/bind-completed": "yes"} if volume else {}
    spec: Object = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
    spec["storageClassName"] = storage_class
    if volume:
        spec["volumeName"] = volume
    metadata = {"name": name, "namespace": "default", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def storage_class(name: str, mode: str) -> Object:
    """A StorageClass."""
    top = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    return {**top, "provisioner": "example.org/disks", "volumeBindingMode": mode}


def priority_class(
    name: str, value: int, policy: str = "PreemptLowerPriority", *, global_default: bool = False
) -> Object:
    """A PriorityClass."""
    top = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    return {**top, "value": value, "preemptionPolicy": policy, "globalDefault": global_default}


def budget(name: str, **labels: str) -> Object:
    """A PodDisruptionBudget that allows nothing."""
    top = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name, "namespace": "default"}}
    return {**top, "spec": {"maxUnavailable": 0, "selector": {"matchLabels": labels}}}


def using(pod: Object, *claims: str) -> Object:
    """The pod, with volumes of these claims."""
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    return {**pod, "spec": {**pod["spec"], "volumes": volumes}}


def ranked(pod: Object, priority_class: str) -> Object:
    """The pod, of this priority class."""
    return {**pod, "spec": {**pod["spec"], "priorityClassName": priority_class}}
