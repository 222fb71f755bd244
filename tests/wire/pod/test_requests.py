"""Requests of a pod: amounts, pod-level resources, overhead, classes, and bind policies that a class cannot have."""

from typing import Any

from koord_numa.core.objects.vocabulary import (
    PriorityClass,
    QosClass,
)
from koord_numa.wire import parse_pod
from tests.tables import each_row
from tests.wire.objects import POD, annotated, changed, labelled
from tests.wire.pod.bare import GIB, SPEC, bare

AMOUNTS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "requests default to limits": ({"limits": {"cpu": "2"}}, {"cpu": 2000}),
    "requests of their own": ({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}, {"cpu": 1000}),
    "rounded up": ({"requests": {"cpu": "1.0001", "memory": "0.5"}}, {"cpu": 1001, "memory": 1}),
    "numbers": ({"requests": {"cpu": 1.5, "nvidia.com/gpu": 2}}, {"cpu": 1500, "nvidia.com/gpu": 2}),
    "deprecated batch names": (
        {"requests": {"koordinator.sh/batch-cpu": "500", "koordinator.sh/batch-memory": "1Gi"}},
        {"kubernetes.io/batch-cpu": 500, "kubernetes.io/batch-memory": GIB},
    ),
    "deprecated device names": (
        {"requests": {"kubernetes.io/gpu": "1", "kubernetes.io/rdma": "2"}},
        {"koordinator.sh/gpu": 1, "koordinator.sh/rdma": 2},
    ),
    "both names: today's counts": (
        {"requests": {"kubernetes.io/gpu": "1", "koordinator.sh/gpu": "3"}},
        {"koordinator.sh/gpu": 3},
    ),
    "beyond all measure": ({"requests": {"memory": "99999Ei"}}, {"memory": 2**60}),
}


@each_row(("resources", "requests"), AMOUNTS.values(), ids=AMOUNTS.keys())
def test_amounts(resources: dict[str, Any], requests: dict[str, int]) -> None:
    (container,) = parse_pod(bare(containers=[{"name": "c", "resources": resources}])).request.containers
    assert container.requests == requests


POD_LEVEL: dict[str, tuple[dict[str, Any], tuple[dict[str, int] | None, dict[str, int] | None]]] = {
    "none": ({}, (None, None)),
    "empty": ({"requests": {}}, (None, None)),
    "requests": ({"requests": {"cpu": "3"}}, ({"cpu": 3000}, {})),
    "limits of what no container asks for": ({"limits": {"memory": "1Gi"}}, ({"memory": GIB}, {"memory": GIB})),
    "limits of what a container asks for": ({"limits": {"cpu": "3"}}, ({}, {"cpu": 3000})),
}


@each_row(("resources", "expected"), POD_LEVEL.values(), ids=POD_LEVEL.keys())
def test_pod_level_resources(resources: dict[str, Any], expected: tuple[Any, Any]) -> None:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    request = parse_pod(bare(containers=containers, resources=resources)).request
    assert (request.pod_requests, request.pod_limits) == expected


def test_overhead() -> None:
    assert parse_pod(bare(overhead={"cpu": "250m"})).request.overhead == {"cpu": 250}


@each_row("word", ["lsr", "LSRX", "Guaranteed"])
@each_row("key", ["koordinator.sh/qosClass", "koordinator.sh/priority-class"])
def test_an_unknown_class_is_refused_and_not_ignored(key: str, word: str) -> None:
    assert f'label {key}: "{word}" is none of' in parse_pod(labelled(POD, key, word)).problem


@each_row("policy", ["FullPCPUs", "SpreadByPCPUs"])
@each_row(
    ("qos", "band", "why"),
    [
        ("LS", "koord-prod", "a pod of QoS class LS has no exclusive CPUs"),
        ("BE", "koord-batch", "a pod of QoS class BE has no exclusive CPUs"),
        ("SYSTEM", "", "a pod of QoS class SYSTEM has no exclusive CPUs"),
        ("LSR", "koord-batch", "an LSR pod of the band koord-batch has no exclusive CPUs"),
    ],
)
def test_a_required_bind_policy_of_a_class_without_cpus_fails(policy: str, qos: str, band: str, why: str) -> None:
    obj = labelled(labelled(POD, "koordinator.sh/qosClass", qos), "koordinator.sh/priority-class", band)
    required = annotated(obj, SPEC, f'{{"requiredCPUBindPolicy":"{policy}"}}')
    problem = parse_pod(required).problem
    assert f"{policy} needs an LSE or LSR pod of the band koord-prod" in problem
    assert why in problem
    preferred = annotated(obj, SPEC, f'{{"preferredCPUBindPolicy":"{policy}"}}')
    assert parse_pod(preferred).problem == ""
    assert parse_pod(changed(required, "spec nodeName", "n")).problem == ""  # one that is bound is only counted


def test_the_numeric_priority_keeps_a_pod_from_cpus_too() -> None:
    obj = labelled(changed(POD, "spec priority", 5500), "koordinator.sh/priority-class", "")
    assert "an LSR pod of the band koord-batch has no exclusive CPUs" in parse_pod(obj).problem


def test_empty_classes_are_no_class() -> None:
    obj = labelled(labelled(POD, "koordinator.sh/qosClass", ""), "koordinator.sh/priority-class", "")
    pod = parse_pod(obj)
    assert (pod.problem, pod.request.qos, pod.request.priority_class) == ("", QosClass.NONE, PriorityClass.NONE)
