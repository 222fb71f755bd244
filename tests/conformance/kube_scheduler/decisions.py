"""kube-scheduler 1.36 with its default profile: which nodes take a pod, and in which order its soft preferences put them."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.scheduling.filters import ScoredPlacement
from koord_numa.core.scheduling.scorers import PREFERENCES
from tests.conformance.deviations import Deviation
from tests.conformance.kube_scheduler.cluster import Cluster, load
from tests.conformance.vectors import Case, Oracle

WEIGHTS = {"TaintToleration": 3, "NodeAffinity": 2, "PodTopologySpread": 2, "InterPodAffinity": 2, "ImageLocality": 1}
"""The weights of kube-scheduler's default profile for the score plugins whose order of two nodes is compared."""


@dataclass(frozen=True)
class Answer:
    """By node: the refusal, or ``None``; and what the nodes that fit earn by preferences, each with kube-scheduler's weight."""

    refusals: Mapping[str, Rejection | None]
    preferred: Mapping[str, int]
    problem: str


def answer(cluster: Cluster) -> Answer:
    """Ask every node."""
    found = cluster.world.engine.dry_run(cluster.pod)
    assert found is not None
    refusals = {name: each if isinstance(each, Rejection) else None for name, each in found.items()}
    preferred = {
        name: sum(WEIGHTS[row.plugin] * (each.parts or {})[row.name] // row.weight for row in PREFERENCES)
        for name, each in found.items()
        if isinstance(each, ScoredPlacement)
    }
    return Answer(refusals, preferred, cluster.pod.problem)


def agrees(case: Case, ours: Answer) -> str | None:
    """The same nodes fit; and of each two nodes that fit the same one is preferred, or none."""
    if ours.problem:
        return f"the pod is malformed: {ours.problem}"
    differences = [
        f"{node}: {theirs}, here {ours.refusals.get(node) or 'it fits'}"
        for node, theirs in (case["out"].get("nodes") or {}).items()
        if (theirs[0] == "Success") != (node in ours.preferred)
    ]
    disordered = list(disorder(case, ours.preferred))
    if disordered:
        differences.append(f"order of {', '.join(disordered)} by preferences")
    return "; ".join(differences) or None


def disorder(case: Case, ours: Mapping[str, int]) -> list[str]:
    """The pairs of nodes that both fit and that preferences put into another order."""
    scores = {plugin: points for plugin, points in (case["out"].get("scores") or {}).items() if plugin in WEIGHTS}
    if "scores" not in case["out"]:
        return []
    out = case["out"].get("nodes") or {}
    fitting = [name for name in ours if name not in out or out[name][0] == "Success"]
    theirs = {name: sum(points.get(name, 0) for points in scores.values()) for name in fitting}
    return [
        f"{one} ({theirs[one]}, here {ours[one]}) and {other} ({theirs[other]}, here {ours[other]})"
        for one, other in combinations(fitting, 2)
        if _sign(theirs[one] - theirs[other]) != _sign(ours[one] - ours[other])
    ]


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _spreads_everything(case: Case, _ours: Answer) -> bool:
    constraints = case["in"]["pod"]["spec"].get("topologySpreadConstraints") or ()
    return any(it.get("labelSelector") is not None and not any(it["labelSelector"].values()) for it in constraints)


def _compares(case: Case, _ours: Answer) -> bool:
    tolerations = case["in"]["pod"]["spec"].get("tolerations") or ()
    return any(it.get("operator") in ("Gt", "Lt") for it in tolerations)


def _keeps_room(case: Case, _ours: Answer) -> bool:
    """
    Return true if upstream skips inter-pod affinity: the pod has no terms and no placed pod has a term for it. Nominated pods do not count.

    Ours must be right without the anti-affinity of nominated pods.
    """
    affinity = case["in"]["pod"]["spec"].get("affinity") or {}
    if affinity.get("podAffinity") or affinity.get("podAntiAffinity"):
        return False
    nominated = [_without_anti_affinity(pod) for pod in case["in"].get("nominated") or ()]
    return agrees(case, answer(load({**case, "in": {**case["in"], "nominated": nominated}}))) is None


def _without_anti_affinity(pod: Mapping[str, Any]) -> dict[str, Any]:
    affinity = {**(pod["spec"].get("affinity") or {})}
    affinity.pop("podAntiAffinity", None)
    return {**pod, "spec": {**pod["spec"], "affinity": affinity}}


DEVIATIONS: tuple[Deviation[Answer], ...] = (
    Deviation("nominated-anti-affinity", _keeps_room),
    Deviation("empty-spread-selector", _spreads_everything),
    Deviation("comparing-tolerations", _compares),
)

ORACLE = Oracle("kube-scheduler", load, answer, agrees, DEVIATIONS)
