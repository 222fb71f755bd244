"""Recent decisions: what was chosen, and which nodes came next and why they lost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.request import PodKey
from koord_numa.core.verdicts import Placement
from koord_numa.view.documents import Document, document


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """A node that could have taken the pod, with its score."""

    node: str
    score: int
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One placement. ``time`` is RFC 3339."""

    time: str
    pod: PodKey
    placement: Placement
    score: int | None = None
    runners_up: Sequence[RunnerUp] = ()


def decisions_document(decisions: Iterable[Decision], now: str) -> Document:
    """The newest first."""
    return document("DecisionsView", generatedAt=now, decisions=[_entry(one) for one in decisions])


def _entry(one: Decision) -> Document:
    placement = one.placement
    return {
        "time": one.time,
        "pod": str(one.pod),
        "uid": one.pod.uid,
        "node": placement.node,
        "numa": [numa for numa, _ in placement.numa] or list(CpuSet(placement.mask or 0)),
        "cpus": str(placement.cpus),
        "alignment": placement.alignment.value,
        "score": "" if one.score is None else str(one.score),
        "runnersUp": [{"node": other.node, "score": other.score, "why": other.why} for other in one.runners_up],
    }
