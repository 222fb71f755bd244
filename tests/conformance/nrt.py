"""The scheduler-plugins' NodeResourceTopologyMatch: filter and scores of one node for one pod."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from koord_numa.core.cpu_topology import MAX_NUMA
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    CpuOwner,
    KubeletPolicy,
    KubeletScope,
    KubeQos,
    ScoringType,
)
from koord_numa.core.pod_resources import kube_qos
from koord_numa.core.resources import ResourceList, amount
from koord_numa.core.score import least_numa_nodes as least
from koord_numa.core.score.node_scores import score_zones
from tests.conformance.deviations import Deviation
from tests.conformance.nrt_filter import fits_zones
from tests.conformance.vectors import Case, Oracle

_POLICIES = {
    f"{policy}{scope}Level": (kubelet_policy, kubelet_scope)
    for policy, kubelet_policy in (
        ("SingleNUMANode", KubeletPolicy.SINGLE_NUMA_NODE),
        ("Restricted", KubeletPolicy.RESTRICTED),
        ("BestEffort", KubeletPolicy.BEST_EFFORT),
    )
    for scope, kubelet_scope in (("Container", KubeletScope.CONTAINER), ("Pod", KubeletScope.POD))
}
_ZONE = re.compile(r"node-(\d+)")


@dataclass(frozen=True)
class NrtCase:
    """One node and one pod."""

    topology: NodeResourceTopology | None
    allocatable: ResourceList
    pod: PodRequest
    weights: Mapping[str, int]


@dataclass(frozen=True)
class NrtAnswer:
    """Everything the oracle recorded."""

    qos: KubeQos
    refusal: Rejection | None
    scores: Mapping[str, int]


def amounts(texts: Mapping[str, str] | None) -> dict[str, int]:
    """Quantities in our units."""
    return {name: amount(name, text) for name, text in (texts or {}).items()}


def load(case: Case) -> NrtCase:
    """Cases are read here and not by ``wire``: their shape is the recorder's own."""
    given = case["in"]
    pod = load_pod(given["pod"])
    return NrtCase(
        _topology(given.get("nrt")),
        amounts(given.get("node_allocatable")),
        pod,
        _upstream_weights(pod, given.get("weights") or {}),
    )


def _upstream_weights(pod: PodRequest, weights: Mapping[str, int]) -> Mapping[str, int]:
    """Upstream gives every resource that is not listed the weight 1; with us it counts nothing (row `listed-resources-only`)."""
    requested = {name for container in pod.containers for name in container.requests} | pod.overhead.keys()
    return {name: max(1, weights.get(name, 1)) for name in {*requested, *weights}}


def load_pod(pod: Mapping[str, Any]) -> PodRequest:
    """The pod of a case."""
    return PodRequest(containers=tuple(_containers(pod)), overhead=amounts(pod.get("overhead")))


def _containers(pod: Mapping[str, Any]) -> Iterator[Container]:
    for index, one in enumerate(pod.get("init") or ()):
        kind = ContainerKind.SIDECAR if one.get("sidecar") else ContainerKind.INIT
        yield Container(f"init-{index}", kind, amounts(one.get("requests")), amounts(one.get("limits")))
    for index, one in enumerate(pod.get("containers") or ()):
        yield Container(f"app-{index}", ContainerKind.APP, amounts(one.get("requests")), amounts(one.get("limits")))


def _topology(nrt: Mapping[str, Any] | None) -> NodeResourceTopology | None:
    if nrt is None:
        return None
    zones, distances = [], {}
    for zone in nrt.get("zones") or ():
        numa = _numa(zone.get("name") or "")
        if zone.get("type") != "Node" or numa is None:
            continue
        free = amounts(zone.get("res"))
        zones.append(Zone(numa, free, free, free))
        for name, cost in (zone.get("costs") or {}).items():
            if (other := _numa(name)) is not None:
                distances[numa, other] = cost
    return NodeResourceTopology(
        node="node", owner=CpuOwner.KUBELET, zones=tuple(zones), kubelet=_kubelet(nrt), distances=distances
    )


def _kubelet(nrt: Mapping[str, Any]) -> KubeletConfig:
    policy, scope = KubeletPolicy.NONE, KubeletScope.CONTAINER
    highest = KubeletConfig().max_numa_nodes
    for name in (nrt.get("policies") or ())[:1]:
        policy, scope = _POLICIES.get(name, (policy, scope))
    for name, value in nrt.get("attributes") or ():
        if name == "topologyManagerPolicy" and value in list(KubeletPolicy):
            policy = KubeletPolicy(value)
        elif name == "topologyManagerScope" and value in list(KubeletScope):
            scope = KubeletScope(value)
        elif name == "topologyManagerMaxNUMANodes" and re.fullmatch(r"[+-]?\d+", value) and int(value) > 1:
            highest = min(int(value), 1024)
    return KubeletConfig(topology_policy=policy, topology_scope=scope, max_numa_nodes=highest)


def _numa(name: str) -> int | None:
    match = _ZONE.fullmatch(name)
    return int(match[1]) if match and int(match[1]) < MAX_NUMA else None


def answer(given: NrtCase) -> NrtAnswer:
    """Filter and all four scores."""
    qos = kube_qos(given.pod)
    return NrtAnswer(
        qos,
        fits_zones(given.pod, qos, given.topology, given.allocatable),
        {s: score_zones(given.pod, qos, given.topology, ScoringType(s), given.weights) for s in ScoringType},
    )


def agrees(case: Case, ours: NrtAnswer) -> str | None:
    """Scores where upstream panics have no recorded answer: there ours only has to be a score."""
    out = case["out"]
    if ours.qos != out["qos"]:
        return f"QoS {ours.qos}, recorded {out['qos']}"
    reasons = [] if ours.refusal is None else [ours.refusal.message]
    if reasons != out["filter"]["reasons"]:
        return f"filter {reasons}, recorded {out['filter']['reasons']}"
    for strategy, recorded in out["scores"].items():
        score = ours.scores[strategy]
        if not 0 <= score <= 100 or ("panic" not in recorded and score != recorded["score"]):
            return f"{strategy} {score}, recorded {recorded}"
    return None


def host_level_resources(case: Case, ours: NrtAnswer) -> bool:
    """
    The row `host-level-resources`: LeastNUMANodes is recorded as 0 only because some requested resource is in no zone.

    Without that resource the recorded score of everything else stands.
    """
    given, out = load(case), case["out"]
    if given.topology is None or not _all_else_agrees(case, ours):
        return False
    listed = {name for zone in given.topology.zones for name in zone.available}
    requested = {name for container in given.pod.containers for name in container.requests}
    return out["scores"]["LeastNUMANodes"].get("score") == 0 and bool(requested - listed) and bool(requested & listed)


def ids_as_indexes(case: Case, ours: NrtAnswer) -> bool:
    """
    The row `numa-ids-as-indexes`: upstream takes what a container needs from the zones *listed* at the ids that it chose.

    Only where zones are out of order, under container scope, with several containers.
    """
    given = load(case)
    if given.topology is None or not _all_else_agrees(case, ours) or len(given.pod.containers) < 2:
        return False
    if given.topology.kubelet.topology_scope is not KubeletScope.CONTAINER:
        return False
    return bool(case["out"]["scores"]["LeastNUMANodes"].get("score") == _drained_by_index(given.pod, given.topology))


def _drained_by_index(pod: PodRequest, topology: NodeResourceTopology) -> int:
    """As ours, but what a container takes leaves the zones at the *positions* of the chosen NUMA ids."""
    zones = topology.zones
    free = [dict(zone.available) for zone in zones]
    matrix = least.distance_matrix([zone.numa for zone in zones], topology.distances)
    most, optimal = 0, True
    for container in sorted(pod.containers, key=lambda one: one.kind is ContainerKind.APP):
        if not any(name in zone for name in container.requests for zone in free):
            continue
        choice = least.least_zones(container.requests, free, matrix, closest=True)
        if choice is None:
            return 0
        most, optimal = max(most, len(choice.zones)), optimal and choice.optimal
        positions = sorted(zones[index].numa for index in choice.zones)
        least.drain(container.requests, [free[at] for at in positions if at < len(free)])
    highest = topology.kubelet.max_numa_nodes
    return least.normalized(most, optimal=optimal, highest=highest) if most else 100


def _all_else_agrees(case: Case, ours: NrtAnswer) -> bool:
    out = case["out"]
    others = {name: score for name, score in out["scores"].items() if name != "LeastNUMANodes"}
    return agrees({**case, "out": {**out, "scores": others}}, ours) is None


ORACLE = Oracle(
    "nrt",
    load,
    answer,
    agrees,
    (Deviation("host-level-resources", host_level_resources), Deviation("numa-ids-as-indexes", ids_as_indexes)),
)
