"""The parts of a workload, and the nodes and pods of kube-scheduler's ``scheduler_perf`` suite as JSON."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

JsonObject = dict[str, Any]
MakePod = Callable[[int], JsonObject]

ZONE: Final = "topology.kubernetes.io/zone"
HOST: Final = "kubernetes.io/hostname"

BIG_NODE: Final = "scheduler-perf-node"
"""The node of ``node-with-name.yaml``, which takes all pods of a workload."""

PRIORITIES: Final[tuple[JsonObject, ...]] = tuple(
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
    for name, value in (("low", -1), ("high", 10))
)


def node(number: int, **fields: Any) -> JsonObject:
    """A node of 4 CPUs in one of three zones, as ``node-default.yaml``; no topology is published for it."""
    name = f"node-{number:05}"
    amounts = {"cpu": "4", "memory": "32Gi", "pods": "110"}
    labels = {HOST: name, ZONE: f"moon-{number % 3 + 1}", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": fields,
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def large_node(number: int) -> JsonObject:
    """A node that never is full in these workloads."""
    made = node(number)
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    made["status"] |= {"capacity": amounts, "allocatable": amounts}
    return made


def named_node() -> JsonObject:
    """The one node of ``node-with-name.yaml``."""
    made = node(0)
    amounts = {"cpu": "30000", "memory": "32Ti", "pods": "30000"}
    made["metadata"] = {"name": BIG_NODE, "labels": {HOST: BIG_NODE}}
    made["status"] |= {"capacity": amounts, "allocatable": amounts}
    return made


def every_other_tainted(number: int) -> JsonObject:
    """Half of the nodes keep pods away (``node-with-taint.yaml``)."""
    return node(number, taints=[{"key": "foo", "effect": "NoSchedule"}] if number % 2 else [])


@dataclass(frozen=True, slots=True)
class Churn:
    """Objects that come every ``pause`` seconds while pods are measured, and go again after it if ``go``."""

    objects: Callable[[int], tuple[JsonObject, ...]]
    go: bool = True
    pause: float = 0.2


@dataclass(frozen=True, slots=True)
class Workload:
    """
    Nodes (``machines`` names some with topologies), pods that are there before, pods that are measured.

    ``before`` pods are bound by the scheduler and not measured: so many, and so many for each node. ``idle`` ones never can be bound.

    ``rate`` and ``cpu`` are kube-scheduler's at 1,000 nodes, ``large_rate`` and ``large_cpu`` at 5,000 (0: not measured there), and
    ``faster`` and ``cheaper`` what is asked of us beside them; ``floor`` is the threshold of kube-scheduler's own continuous integration at
    ``large`` nodes.
    """

    name: str
    pod: MakePod
    before: MakePod | None = None
    idle: MakePod | None = None
    node: MakePod = node
    machines: str = ""
    extra_node: JsonObject | None = None
    nodes: int = 1_000
    count: int = 1_000
    count_before: int = 1_000
    before_a_node: int = 0
    count_idle: int = 200
    churn: Churn | None = None
    rate: float = 0.0
    cpu: float = 0.0
    large_rate: float = 0.0
    large_cpu: float = 0.0
    faster: float = 1.2
    cheaper: float = 0.8
    floor: float = 0.0
    large: int = 5_000


def pod(name: str, labels: dict[str, str] | None = None, cpu: str = "100m", **spec: Any) -> JsonObject:
    """A pod of 100 milli-CPU and 500Mi, as ``pod-default.yaml``."""
    requests = {"cpu": cpu, "memory": "500Mi"}
    container = {"name": "pause", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": requests}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
        "spec": {"schedulerName": "koord-numa", "containers": [container], **spec},
    }


def plain(number: int) -> JsonObject:
    """A pod that is measured."""
    return pod(f"pod-{number:06}")


def before(number: int) -> JsonObject:
    """A pod that is there before."""
    return pod(f"before-{number:06}")


def coloured(prefix: str, color: str, kind: str, key: str, *, soft: bool = False, **more: Any) -> MakePod:
    """Pods of a colour that want to be near to, or far from, pods of their own colour."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"color": color}}, **more}
    affinity = (
        {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}
        if soft
        else {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    )
    return lambda number: pod(f"{prefix}-{number:06}", {"color": color}, affinity=affinity)


def spread(prefix: str, when: str, **more: Any) -> MakePod:
    """Pods that spread over the zones."""
    selector = {"matchLabels": {"color": "blue"}}
    rule = {"maxSkew": 5, "topologyKey": ZONE, "whenUnsatisfiable": when, "labelSelector": selector, **more}
    return lambda number: pod(f"{prefix}-{number:06}", {"color": "blue"}, topologySpreadConstraints=[rule])


def on_nodes(prefix: str, term: Callable[[int], JsonObject]) -> MakePod:
    """Pods that name their nodes by a term each."""

    def make(number: int) -> JsonObject:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term(number)]}}
        return pod(f"{prefix}-{number:06}", affinity={"nodeAffinity": required})

    return make


def in_two_zones(_number: int) -> JsonObject:
    """Two of the three zones."""
    return {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["moon-1", "moon-2"]}]}


def on_the_named_node(_number: int) -> JsonObject:
    """As a DaemonSet's pods name their node; here all the same one (``daemonset-pod.yaml``)."""
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [BIG_NODE]}]}


def on_a_node_each(number: int) -> JsonObject:
    """As a DaemonSet's pods name their nodes: no two the same."""
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [f"node-{number:05}"]}]}


def low(number: int) -> JsonObject:
    """Four of them leave 400 milli-CPU of a node (``pod-low-priority.yaml``)."""
    return pod(f"low-{number:06}", cpu="900m", priorityClassName="low", terminationGracePeriodSeconds=0)


def high(number: int, prefix: str = "pod") -> JsonObject:
    """It fits on a node that three low ones have left (``pod-high-priority.yaml``)."""
    return pod(f"{prefix}-{number:06}", cpu="3000m", priorityClassName="high", terminationGracePeriodSeconds=0)


def hopeless(number: int) -> JsonObject:
    """It fits nowhere (``pod-large-cpu.yaml``)."""
    return pod(f"hopeless-{number:06}", cpu="9999")


def gated(number: int) -> JsonObject:
    """It waits for its gate to be removed."""
    return pod(f"gated-{number:06}", schedulingGates=[{"name": "example.com/later"}])
