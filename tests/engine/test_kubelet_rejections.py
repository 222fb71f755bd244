"""A node and a class rest after a refusal, longer each time, and are forgotten when they stay quiet."""

from koord_numa.core.objects.verdicts import Reason
from koord_numa.engine.cache.cache import is_kubelet_rejection
from koord_numa.engine.cache.listers import PodIndex
from koord_numa.engine.containment import NodeBackoff
from koord_numa.engine.queue.pending_pod import RequestClass, RequestClasses
from koord_numa.settings import BackoffSettings, Settings
from tests.engine.world import make_pod
from tests.tables import each_row

CLASSES = RequestClasses(Settings(), PodIndex())


def request_class(cpu: int = 1000) -> RequestClass:
    found = CLASSES.of(make_pod("pod", cpu=cpu))
    assert found is not None
    return found


@each_row(
    ("phase", "reason", "refused"),
    [
        ("Failed", "TopologyAffinityError", True),
        ("Failed", "SMTAlignmentError", True),
        ("Failed", "UnexpectedAdmissionError", True),
        ("Failed", "OutOfcpu", True),
        ("Failed", "Evicted", False),
        ("Failed", "", False),
        ("Running", "TopologyAffinityError", False),
    ],
)
def test_refusals_are_told_by_the_kubelets_reason(phase: str, reason: str, refused: bool) -> None:
    assert is_kubelet_rejection(make_pod("pod", phase=phase, reason=reason)) is refused


def test_a_rest_is_for_one_pair_only_and_says_why() -> None:
    backoff, rested = NodeBackoff(BackoffSettings(initial=30, max=600)), request_class()
    assert backoff.refused("node", rested, "OutOfcpu", now=100) == 130
    refusal = backoff.refusal("node", rested, now=129)
    assert refusal is not None
    assert (refusal.reason, refusal.resolvable) == (Reason.COOLING_DOWN, False)
    assert refusal.detail == "its kubelet answered OutOfcpu 1 time(s) to such pods"
    assert backoff.refusal("node", request_class(2000), now=129) is None
    assert backoff.refusal("other", rested, now=129) is None
    assert backoff.refusal("node", rested, now=130) is None


def test_every_further_refusal_doubles_the_rest_up_to_a_limit() -> None:
    backoff, rested, now = NodeBackoff(BackoffSettings(initial=30, max=100)), request_class(), 0.0
    rests = []
    for _ in range(4):
        until = backoff.refused("node", rested, "OutOfcpu", now)
        rests.append(until - now)
        now = until
    assert rests == [30, 60, 100, 100]


def test_the_end_of_a_pause_is_reported_once_and_forgotten() -> None:
    backoff, rested = NodeBackoff(BackoffSettings(initial=30, max=100)), request_class()
    backoff.refused("b", rested, "OutOfcpu", now=0)
    backoff.refused("a", rested, "OutOfcpu", now=0)
    assert [backoff.ended(now) for now in (29, 30, 31)] == [[], ["a", "b"], []]
    assert len(backoff) == 2
    assert backoff.ended(130) == []
    assert len(backoff) == 0
    assert backoff.refused("a", rested, "OutOfcpu", now=131) == 161
