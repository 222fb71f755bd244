"""
The workloads of kube-scheduler's ``scheduler_perf`` suite as data: nodes, pods that are there before, pods that are measured.

Shapes and sizes follow ``test/integration/scheduler_perf``; ``rate`` and ``cpu`` are what kube-scheduler 1.36 reached on a real API
server with two shared cores (pods a second from first to last bind, CPU ms a pod), and the factors are what is asked of us beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

JsonObject = dict[str, Any]
MakePod = Callable[[int], JsonObject]

ZONE: Final = "topology.kubernetes.io/zone"
HOST: Final = "kubernetes.io/hostname"


PRIORITIES: Final[tuple[JsonObject, ...]] = tuple(
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
    for name, value in (("low", -1), ("high", 10))
)


@dataclass(frozen=True, slots=True)
class Workload:
    """
    ``before`` pods are bound by the scheduler and not measured; ``idle`` ones never can be. ``churn``: objects come and go meanwhile.

    ``rate`` and ``cpu`` are kube-scheduler's at 1,000 nodes (0: not measured there); ``floor`` is its own CI threshold at 5,000 nodes.
    """

    name: str
    pod: MakePod
    before: MakePod | None = None
    idle: MakePod | None = None
    node: Callable[[int], JsonObject] | None = None
    nodes: int = 1_000
    count: int = 1_000
    count_before: int = 1_000
    count_idle: int = 200
    churn: bool = False
    rate: float = 0.0
    cpu: float = 0.0
    faster: float = 1.2
    cheaper: float = 0.8
    floor: float = 0.0


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


def _every_other_tainted(number: int) -> JsonObject:
    taints = [{"key": "foo", "effect": "NoSchedule"}] if number % 2 else []
    return node(number, taints=taints)


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


def _plain(number: int) -> JsonObject:
    return pod(f"pod-{number:06}")


def _before(number: int) -> JsonObject:
    return pod(f"before-{number:06}")


def _term(key: str, color: str, **more: Any) -> JsonObject:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"color": color}}, **more}


def _coloured(prefix: str, color: str, kind: str, key: str, *, soft: bool = False, **more: Any) -> MakePod:
    """Pods of a colour that want to be near to, or far from, pods of their own colour."""
    term = _term(key, color, **more)
    affinity = (
        {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}
        if soft
        else {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    )
    return lambda number: pod(f"{prefix}-{number:06}", {"color": color}, affinity=affinity)


def _spread(prefix: str, when: str, **more: Any) -> MakePod:
    selector = {"matchLabels": {"color": "blue"}}
    rule = {"maxSkew": 5, "topologyKey": ZONE, "whenUnsatisfiable": when, "labelSelector": selector, **more}
    return lambda number: pod(f"{prefix}-{number:06}", {"color": "blue"}, topologySpreadConstraints=[rule])


def _required_nodes(prefix: str, terms: Callable[[int], JsonObject]) -> MakePod:
    def make(number: int) -> JsonObject:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [terms(number)]}}
        return pod(f"{prefix}-{number:06}", affinity={"nodeAffinity": required})

    return make


def _in_zone(_number: int) -> JsonObject:
    return {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["moon-1", "moon-2"]}]}


def _one_node(number: int) -> JsonObject:
    name = f"node-{number % 1_000:05}"
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}


def _low(number: int) -> JsonObject:
    """Four of them leave 400 milli-CPU of a node."""
    return pod(f"low-{number:06}", cpu="900m", priorityClassName="low", terminationGracePeriodSeconds=0)


def _high(number: int) -> JsonObject:
    return pod(f"pod-{number:06}", cpu="3000m", priorityClassName="high", terminationGracePeriodSeconds=0)


def _hopeless(number: int) -> JsonObject:
    return pod(f"hopeless-{number:06}", cpu="9999")


def _gated(number: int) -> JsonObject:
    return pod(f"gated-{number:06}", schedulingGates=[{"name": "example.com/later"}])


_MIXED: Final = (
    _before,
    _coloured("blue", "blue", "podAffinity", ZONE),
    _coloured("green", "green", "podAntiAffinity", HOST),
    _coloured("red", "red", "podAffinity", HOST, soft=True),
    _coloured("yellow", "yellow", "podAntiAffinity", HOST, soft=True),
)

NAMESPACES: Final[JsonObject] = {"namespaceSelector": {"matchLabels": {"team": "devops"}}}

WORKLOADS: Final = (
    Workload("SchedulingBasic", _plain, _before, rate=310, cpu=1.9, faster=1.5, cheaper=0.5, floor=270),
    Workload(
        "SchedulingNodeAffinity",
        _required_nodes("pod", _in_zone),
        _before,
        rate=280,
        cpu=2.6,
        faster=1.5,
        cheaper=0.5,
    ),
    Workload("Unschedulable", _plain, _before, _hopeless, rate=400, cpu=2.2, faster=1.5, cheaper=0.6),
    Workload("TopologySpreading", _spread("pod", "DoNotSchedule"), _before, rate=226, cpu=2.5, floor=85),
    Workload("PreferredTopologySpreading", _spread("pod", "ScheduleAnyway"), _before, rate=200, cpu=3.0, floor=125),
    Workload(
        "SchedulingPodAffinity",
        _coloured("pod", "blue", "podAffinity", ZONE),
        _coloured("before", "blue", "podAffinity", ZONE),
        node=large_node,
        rate=127,
        cpu=7.2,
        floor=35,
    ),
    Workload(
        "SchedulingPodAntiAffinity",
        _coloured("pod", "green", "podAntiAffinity", HOST),
        _coloured("before", "green", "podAntiAffinity", HOST),
        count=400,
        count_before=100,
        rate=174,
        cpu=4.8,
        floor=60,
    ),
    Workload(
        "SchedulingPodMatchingAntiAffinity",
        lambda number: pod(f"pod-{number:06}", {"color": "green"}),
        _coloured("before", "green", "podAntiAffinity", HOST),
        count_before=100,
        floor=540,
    ),
    Workload(
        "SchedulingPreferredPodAffinity",
        _coloured("pod", "red", "podAffinity", HOST, soft=True),
        _coloured("before", "red", "podAffinity", HOST, soft=True),
        rate=88,
        cpu=5.5,
        floor=90,
    ),
    Workload(
        "SchedulingPreferredPodAntiAffinity",
        _coloured("pod", "yellow", "podAntiAffinity", HOST, soft=True),
        _coloured("before", "yellow", "podAntiAffinity", HOST, soft=True),
        rate=85,
        cpu=6.9,
        floor=90,
    ),
    Workload("MixedSchedulingBasePod", _plain, lambda number: _MIXED[number % len(_MIXED)](number), node=large_node),
    Workload("PreemptionBasic", _high, _low, nodes=500, count=500, count_before=2_000, rate=117, cpu=3.9, floor=160),
    Workload("SchedulingWithMixedChurn", _plain, _before, churn=True),
    Workload("SchedulingDaemonset", _required_nodes("pod", _one_node), floor=390),
    Workload("SchedulingGatedPods", _plain, _before, _gated, count_idle=2_000),
    Workload(
        "RequiredPodAntiAffinityWithNSSelector",
        _coloured("pod", "green", "podAntiAffinity", HOST, **NAMESPACES),
        _coloured("before", "green", "podAntiAffinity", HOST, **NAMESPACES),
        count=400,
        count_before=100,
    ),
    Workload(
        "PreferredPodAffinityWithNSSelector",
        _coloured("pod", "red", "podAffinity", HOST, soft=True, **NAMESPACES),
        _coloured("before", "red", "podAffinity", HOST, soft=True, **NAMESPACES),
    ),
    Workload(
        "NodeInclusionPolicy",
        _spread("pod", "DoNotSchedule", nodeTaintsPolicy="Honor"),
        _before,
        node=_every_other_tainted,
        floor=68,
    ),
)
