"""Recent decisions: what was chosen, and which nodes came next and why they lost."""

from collections.abc import Iterable
from datetime import UTC, datetime

from koord_numa.core.cpuset import CpuSet
from koord_numa.engine.decision_log import Decision, RunnerUp
from koord_numa.view.documents import Document, document
from koord_numa.view.text import claimed_devices


def decisions_document(decisions: Iterable[Decision], now: str) -> Document:
    """The newest first; ``decisions`` come oldest first."""
    return document("DecisionsView", generatedAt=now, decisions=[_entry(one) for one in reversed([*decisions])])


def _entry(one: Decision) -> Document:
    placement = one.placement
    return {
        "time": datetime.fromtimestamp(one.seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "pod": str(one.pod),
        "uid": one.pod.uid,
        "node": placement.node,
        "numa": [numa for numa, _ in placement.numa] or list(CpuSet(placement.mask or 0)),
        "cpus": str(placement.cpus),
        "devices": list(claimed_devices(placement)),
        "alignment": placement.alignment.value,
        "score": "" if one.score is None else str(one.score),
        "runnersUp": [_runner_up(other, one.score or 0) for other in one.runners_up],
    }


def _runner_up(other: RunnerUp, best: int) -> Document:
    """``why`` names the scorers that made the difference, the largest first."""
    ranked = sorted(other.differences.items(), key=lambda entry: (-abs(entry[1]), entry[0]))
    parts = ", ".join(f"{name} {points:+d}" for name, points in ranked)
    why = f"score {other.score}: {parts}" if other.score != best else f"the same score {other.score}; names decide"
    return {"node": other.node, "score": other.score, "why": why}
