"""The scheduler-plugins' NodeResourceTopologyMatch: filter and scores of one node for one pod."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from koord_numa.core.cpu_topology import MAX_NUMA
from koord_numa.core.fit.zones import fits_zones
from koord_numa.core.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.pod_resources import kube_qos
from koord_numa.core.quantity import amount
from koord_numa.core.request import Container, PodRequest
from koord_numa.core.resources import ResourceList
from koord_numa.core.score.zones import score_zones
from koord_numa.core.verdicts import Rejection
from koord_numa.core.vocabulary import ContainerKind, CpuOwner, KubeletPolicy, KubeletScope, KubeQos, ScoringType
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
    return NrtCase(
        _topology(given.get("nrt")),
        amounts(given.get("node_allocatable")),
        load_pod(given["pod"]),
        given.get("weights") or {},
    )


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


ORACLE = Oracle("nrt", load, answer, agrees)
