"""
A cluster of API objects, as text in the proposals' form, in front of the scheduler: what is placed where, and what is written.

Objects go through ``wire`` into the engine; what the engine writes is read back from the annotations of the bound pod.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.scheduling.filters import ScoredPlacement
from koord_numa.core.value_objects import replace
from koord_numa.wire import names
from koord_numa.wire.nodes import parse_node
from koord_numa.wire.pod_annotations import resource_status
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.topologies import parse_topology
from tests.cluster.objects import pod_document
from tests.engine.world import World, make_world

Json = dict[str, Any]
GI = "Gi"


def node(name: str, cpus: int, *, memory: int = 64, labels: Mapping[str, str] | None = None, gpus: int = 0) -> Json:
    """A Node of so many CPUs, GiB and GPUs."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {"name": name, **(labels or {})}},
        "status": {
            "allocatable": {"cpu": str(cpus), "memory": f"{memory}Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        },
    }


def zone(numa: int, available: Mapping[str, str], costs: Mapping[int, int] | None = None, **allocatable: str) -> Json:
    """One NUMA node of an NRT; everything is available that is not said to be taken."""
    total = {**available, **allocatable}
    listed = [
        {"name": key, "capacity": total[key], "allocatable": total[key], "available": available[key]}
        for key in available
    ]
    found: Json = {"name": f"node-{numa}", "type": "Node", "resources": listed}
    if costs:
        found["costs"] = [{"name": f"node-{other}", "value": value} for other, value in costs.items()]
    return found


def kubelet_nrt(
    name: str, zones: Sequence[Json], policy: str = "restricted", scope: str = "container", **attributes: str
) -> Json:
    """An NRT of an exporter beside a kubelet that chooses CPUs itself."""
    said = {"topologyManagerPolicy": policy, "topologyManagerScope": scope, "cpuManagerPolicy": "static", **attributes}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": [{"name": key, "value": value} for key, value in said.items()],
        "zones": list(zones),
    }


def koordlet_nrt(
    name: str,
    *,
    numa: int = 2,
    cores: int = 4,
    memory: int = 32,
    policies: Sequence[str] = (),
    costs: Mapping[tuple[int, int], int] | None = None,
    annotations: Mapping[str, Any] | None = None,
    **amounts: str,
) -> Json:
    """
    An NRT of Koordinator's agent: NUMA nodes of so many cores with two threads, CPUs of one NUMA node in a row, siblings side by side.
    """
    per_numa = 2 * cores
    detail = [{"id": cpu, "core": cpu // 2, "socket": 0, "node": cpu // per_numa} for cpu in range(numa * per_numa)]
    zones = []
    for number in range(numa):
        there = {"cpu": str(per_numa), "memory": f"{memory}Gi", **amounts}
        away = {other: value for (one, other), value in (costs or {}).items() if one == number}
        zones.append(zone(number, there, away))
    written = {"node.koordinator.sh/cpu-topology": {"detail": detail}, **(annotations or {})}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": "Koordinator"},
            "annotations": {key: json.dumps(value) for key, value in written.items()},
        },
        "topologyPolicies": list(policies),
        "zones": zones,
    }


def pod(
    name: str,
    *containers: Mapping[str, Mapping[str, str]],
    qos: str = "",
    spec: Mapping[str, str] | str | None = None,
    numa: Mapping[str, str] | None = None,
    **more: Any,
) -> Json:
    """A pod of these containers; ``spec`` is its resource-spec, ``numa`` its numa-topology-spec, ``more`` goes into its ``spec``."""
    annotations = {}
    if spec is not None:
        annotations[names.RESOURCE_SPEC] = spec if isinstance(spec, str) else json.dumps(spec)
    if numa is not None:
        annotations[names.NUMA_TOPOLOGY_SPEC] = json.dumps(numa)
    spec_ = {
        "containers": [
            {"name": f"c{index}", "image": "none", "resources": dict(resources)}
            for index, resources in enumerate(containers)
        ],
        **more,
    }
    labels = {names.QOS_CLASS: qos, names.PRIORITY_CLASS: "koord-prod"} if qos else {}
    made = pod_document(name, spec_, labels=labels, annotations=annotations)
    made["metadata"]["uid"] = f"uid-{name}"
    return made


def guaranteed(cpu: str, memory: str = "1Gi", **more: str) -> Mapping[str, Mapping[str, str]]:
    """Requests and limits alike."""
    amounts = {"cpu": cpu, "memory": memory, **more}
    return {"requests": amounts, "limits": amounts}


@dataclass
class Cluster:
    """The scheduler before these objects. ``notes`` are the sentences that pods were told, by name."""

    world: World
    bound: dict[str, Pod] = field(default_factory=dict)

    def join(self, obj: Json) -> None:
        """A Node joins."""
        self.world.engine.handlers.nodes.observe("ADDED", parse_node(obj))

    def nrt(self, obj: Json) -> None:
        """A NodeResourceTopology appears or changes."""
        self.world.engine.handlers.topologies.observe("MODIFIED", parse_topology(obj))

    async def create(self, *objs: Json) -> None:
        """Pods are created one after the other, and the scheduler does what it can."""
        for obj in objs:
            parsed = parse_pod(obj)
            self.world.waits(parsed)
            await self.world.settle()
            placed = self.world.server.pods[parsed.key.uid]
            if placed.node:
                annotations = {**obj["metadata"]["annotations"], **self.world.server.annotations[parsed.key.uid]}
                shown = {
                    **obj,
                    "metadata": {**obj["metadata"], "annotations": annotations},
                    "spec": {**obj["spec"], "nodeName": placed.node},
                }
                self.bound[parsed.key.name] = bound = replace(parse_pod(shown), started=True)
                self.world.engine.handlers.bound_pods.observe("ADDED", bound)

    def create_bound(self, obj: Json, node: str, cpus: str) -> None:
        """A pod that is on a node already, on these CPUs."""
        annotations = {**obj["metadata"]["annotations"], names.RESOURCE_STATUS: json.dumps({"cpuset": cpus})}
        shown = {
            **obj,
            "metadata": {**obj["metadata"], "annotations": annotations},
            "spec": {**obj["spec"], "nodeName": node},
        }
        self.bound[obj["metadata"]["name"]] = bound = replace(parse_pod(shown), started=True)
        self.world.engine.handlers.bound_pods.observe("ADDED", bound)

    def node_of(self, name: str) -> str:
        """Return the node of a pod; empty while it waits."""
        return self.bound[name].node if name in self.bound else ""

    def cpus(self, name: str) -> str:
        """Its ``cpuset``."""
        assignment = self.bound[name].assignment
        return str(assignment.cpus) if assignment else ""

    def numa(self, name: str) -> list[int]:
        """The NUMA nodes that its annotation names for people."""
        written = self.world.server.annotations[f"uid-{name}"].get(names.NUMA_NODES, "")
        return list(CpuSet.parse(written)) if written else []

    def status(self, name: str) -> Json:
        """Its resource-status as written."""
        found: Json = json.loads(self.world.server.annotations[f"uid-{name}"].get(names.RESOURCE_STATUS, "{}"))
        return found

    def answer(self, obj: Json, node: str) -> ScoredPlacement:
        """Return the placement of a pod on a node, and its score."""
        found = self.world.engine.dry_run(parse_pod(obj))
        assert found is not None
        answer = found[node]
        assert isinstance(answer, ScoredPlacement), answer
        return answer

    def note(self, obj: Json, node: str) -> str:
        """The sentence that a placement there would carry."""
        return self.answer(obj, node).placement.note

    def score(self, obj: Json, node: str, part: str = "numa") -> int:
        """The weighted points of one part of a node's score."""
        parts = self.answer(obj, node).parts
        assert parts is not None
        return parts[part]

    def explain(self, name: str) -> str:
        """Return the explanation of a waiting pod."""
        return self.world.engine.explain(f"uid-{name}")

    def rejection(self, name: str, node: str) -> Rejection:
        """Return the rejection of a waiting pod by a node."""
        found = self.world.engine.dry_run(self.world.server.pods[f"uid-{name}"])
        assert found is not None
        answer = found[node]
        assert isinstance(answer, Rejection), answer
        return answer

    def why(self, name: str) -> str:
        """Every node's reason against a waiting pod."""
        rejections = self.world.engine.dry_run(self.world.server.pods[f"uid-{name}"])
        assert rejections is not None
        return "; ".join(
            f"{answer.message}: {answer.detail}" for answer in rejections.values() if isinstance(answer, Rejection)
        )


def cluster(*objs: Json, settings: str = "") -> Cluster:
    """A cluster of these Nodes and NRTs."""
    header = "apiVersion: koord-numa.io/v1alpha1\nkind: KoordNumaConfiguration\n"
    nodes = [parse_node(obj) for obj in objs if obj["kind"] == "Node"]
    made = Cluster(make_world(*nodes, settings=header + settings if settings else "", annotate=resource_status))
    for obj in objs:
        if obj["kind"] == "NodeResourceTopology":
            made.nrt(obj)
    return made
