"""Waiting pods by shape: the reason with figures per NUMA node, and remedies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.explain import amounts_text, closest_nodes, describe, needs_text
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import NumaNumbers, Rejection
from koord_numa.core.resources import CPU
from koord_numa.engine.metrics import LoggedDecision, RunnerUp
from koord_numa.view.advice import Remedy
from koord_numa.view.documents import Document, document
from koord_numa.view.text import asked, device_texts, policies


def decisions_document(decisions: Iterable[LoggedDecision], now: str) -> Document:
    """Return the decisions, newest first. ``decisions`` are oldest first."""
    return document("DecisionsView", generatedAt=now, decisions=[_entry(one) for one in reversed([*decisions])])


def _entry(one: LoggedDecision) -> Document:
    placement = one.placement
    return {
        "time": datetime.fromtimestamp(one.seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "pod": str(one.pod),
        "uid": one.pod.uid,
        "node": placement.node,
        "numa": [numa for numa, _ in placement.numa] or list(CpuSet(placement.mask or 0)),
        "cpus": str(placement.cpus),
        "devices": list(device_texts(placement)),
        "alignment": placement.alignment.value,
        "score": "" if one.score is None else str(one.score),
        "runnersUp": [_runner_up(other, one.score or 0) for other in one.runners_up],
    }


def _runner_up(other: RunnerUp, best: int) -> Document:
    """Return the entry of a runner-up. ``why`` lists the scorers that made the difference, the largest first."""
    ranked = sorted(other.differences.items(), key=lambda entry: (-abs(entry[1]), entry[0]))
    parts = ", ".join(f"{name} {points:+d}" for name, points in ranked)
    why = f"score {other.score}: {parts}" if other.score != best else f"the same score {other.score}; names decide"
    return {"node": other.node, "score": other.score, "why": why}


SHAPES: Final = 200
"""Maximum number of listed shapes. Shapes with most pods come first."""

PODS: Final = 50
"""Maximum number of listed pods per shape."""

CLOSEST: Final = 5
"""Maximum number of described nodes per shape."""


@dataclass(frozen=True, slots=True)
class WaitingShape:
    """
    Pods that all nodes treat alike, oldest first.

    ``seconds`` is the waiting time of the oldest pod. ``claims`` are its resource claims.
    """

    pods: Sequence[Pod]
    why: str
    rejections: Mapping[str, Rejection]
    seconds: float = 0.0
    remedies: Sequence[Remedy] = ()
    claims: Sequence[Document] = ()


def waiting_document(shapes: Iterable[WaitingShape], now: str, groups: Iterable[Document] = ()) -> Document:
    """
    Return all shapes, those with most pods first, and the entries of waiting groups.

    ``more`` is the number of shapes that are not listed.
    """
    ranked = sorted(shapes, key=lambda shape: (-len(shape.pods), str(shape.pods[0].key)))
    return document(
        "WaitingView",
        generatedAt=now,
        groups=[*groups],
        classes=[shape_entry(shape) for shape in ranked[:SHAPES]],
        more=max(0, len(ranked) - SHAPES),
    )


def shape_entry(shape: WaitingShape) -> Document:
    """Return the entry of one shape."""
    pod = shape.pods[0]
    return {
        "pods": [str(each.key) for each in shape.pods[:PODS]],
        "count": len(shape.pods),
        "group": "" if pod.request.gang is None else str(pod.request.gang.key),
        "priority": pod.request.priority,
        "asks": asked(pod),
        "policies": policies(pod),
        "qos": str(pod.request.qos),
        "waitedSeconds": round(shape.seconds, 3),
        # Only the sentence. The lines about single nodes are in ``closest``, as data.
        "why": shape.why.partition("\n")[0],
        "reasons": reasons(shape.rejections),
        "closest": [node_rejection(name, shape.rejections[name]) for name in closest_nodes(shape.rejections, CLOSEST)],
        "claims": [*shape.claims],
        "wouldFit": [remedy_entry(remedy) for remedy in shape.remedies],
    }


def remedy_entry(remedy: Remedy) -> Document:
    """Return the entry of one remedy."""
    return {"kind": remedy.kind, "node": remedy.node, "text": remedy.text}


def reasons(rejections: Mapping[str, Rejection]) -> list[Document]:
    """Return the reasons with their numbers of nodes, the most frequent first."""
    texts = sorted((rejection.reason.value, rejection.message) for rejection in rejections.values())
    counted = [(len(list(group)), reason, message) for (reason, message), group in groupby(texts)]
    ranked = sorted(counted, key=lambda entry: (-entry[0], entry[1:]))
    return [{"reason": reason, "message": message, "nodes": nodes} for nodes, reason, message in ranked]


def node_rejection(name: str, rejection: Rejection) -> Document:
    """Return the entry of a node that rejects a pod."""
    return {
        "node": name,
        "reason": rejection.reason.value,
        "message": rejection.message,
        "detail": rejection.detail if rejection.numbers else describe(rejection),
        "largest": amounts_text(rejection.largest) if rejection.largest else "",
        "numa": [_numbers(one) for one in rejection.numbers],
    }


def _numbers(one: NumaNumbers) -> Document:
    """Return amounts in internal units (milli-CPU, bytes, counts) and as text."""
    free, total = (amounts_text({one.resource: amount}) for amount in (one.free, one.total))
    return {
        "numa": one.numa,
        "resource": one.resource,
        "free": one.free,
        "total": one.total,
        "needed": one.needed,
        "freeText": free.partition(" ")[0] if one.resource != CPU else f"{free} {one.shape}".rstrip(),
        "totalText": total.partition(" ")[0] if one.resource != CPU else total,
        "neededText": needs_text({one.resource: one.needed}),
    }
