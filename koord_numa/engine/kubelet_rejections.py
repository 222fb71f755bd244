"""
Nodes whose kubelet has just refused pods of a request class: that pair rests for a while, so that a controller which makes the same
pod again and again cannot run in circles.
"""

from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.request import Pod
from koord_numa.core.verdicts import Reason, Rejection
from koord_numa.engine.queue.request_class import RequestClass
from koord_numa.settings import BackoffSettings

REFUSALS: Final = ("TopologyAffinityError", "SMTAlignmentError", "UnexpectedAdmissionError")
OUT_OF: Final = "OutOf"


def is_refusal(pod: Pod) -> bool:
    """Did a kubelet refuse this pod at its door? As the kubelet's admission handlers name their reasons (OutOfcpu, ...)."""
    return pod.phase == "Failed" and (pod.reason in REFUSALS or pod.reason.startswith(OUT_OF))


@dataclass(slots=True)
class _Rest:
    until: float
    times: int
    why: str
    over: bool = False  # its end has been told


@dataclass(slots=True)
class NodeBackoff:
    """Pairs of node and request class that rest. Times are monotonic seconds; each refusal in a row doubles the rest, capped."""

    backoff: BackoffSettings
    _rests: dict[tuple[str, RequestClass], _Rest] = field(default_factory=dict)

    def refused(self, node: str, klass: RequestClass, why: str, now: float) -> float:
        """A kubelet refused a pod of this class; returns until when the pair rests."""
        known = self._rests.get((node, klass))
        times = known.times + 1 if known else 1
        until = now + min(self.backoff.max, self.backoff.initial * 2.0 ** min(times - 1, 32))
        self._rests[node, klass] = _Rest(until, times, why)
        return until

    def refusal(self, node: str, klass: RequestClass, now: float) -> Rejection | None:
        """Why this class may not go to this node now."""
        rest = self._rests.get((node, klass))
        if rest is None or rest.until <= now:
            return None
        detail = f"its kubelet answered {rest.why} {rest.times} time(s) to such pods"
        message = "node(s) had a kubelet that just refused such a pod"
        return Rejection(Reason.COOLING_DOWN, message, detail, resolvable=False)

    def next_end(self, now: float) -> float | None:
        """When the first rest ends that has not ended yet."""
        return min((rest.until for rest in self._rests.values() if rest.until > now), default=None)

    def ended(self, now: float) -> list[str]:
        """Nodes of which a rest has ended since the last call. Pairs that stay quiet for as long again are forgotten."""
        nodes = set()
        for pair, rest in list(self._rests.items()):
            if rest.until <= now and not rest.over:
                rest.over = True
                nodes.add(pair[0])
            if rest.until + self.backoff.max <= now:
                del self._rests[pair]
        return sorted(nodes)

    def __len__(self) -> int:
        return len(self._rests)
