"""Pods for simulated machines, and how a scheduler would bind them."""

from typing import Any

import orjson

from koord_numa.core.objects.request import PodKey
from koord_numa.sandbox.apiserver import DirectStore
from koord_numa.wire import names

Json = dict[str, Any]


def create(store: DirectStore, name: str, limits: Json | None = None, **metadata: Any) -> PodKey:
    """A pod of one container with these limits, waiting to be bound."""
    obj = store.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **metadata},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits or {}}}]},
        }
    )
    return PodKey("default", name, obj["metadata"]["uid"])


def bind(store: DirectStore, pod: PodKey, node: str, status: Json | None = None) -> Json:
    """Bind a pod with this resource-status; returns the pod as it is then."""
    annotations = {names.RESOURCE_STATUS: orjson.dumps(status).decode()} if status is not None else {}
    store.bind(
        pod.namespace, pod.name, {"metadata": {"uid": pod.uid, "annotations": annotations}, "target": {"name": node}}
    )
    return store.get("pods", pod.name, pod.namespace)


def place(store: DirectStore, node: str, name: str, cpus: str) -> PodKey:
    """A pod that is bound to exactly these CPUs."""
    count = len([cpu for part in cpus.split(",") for cpu in span(part)])
    pod = create(store, name, {"cpu": str(count)})
    bind(store, pod, node, {"cpuset": cpus})
    return pod


def span(part: str) -> range:
    """One part of a cpu list."""
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def numa(*entries: tuple[int, Json]) -> list[Json]:
    """NUMA amounts as they stand in a resource-status."""
    return [{"node": node, "resources": resources} for node, resources in entries]


def phase(store: DirectStore, pod: PodKey) -> str:
    """Return the phase of a pod."""
    return str(store.get("pods", pod.name, pod.namespace)["status"]["phase"])
