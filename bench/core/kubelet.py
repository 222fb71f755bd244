"""
Would the kubelet admit? Time and truth of the answers over the recorded sequences, with published amounts only.

CPU time of this process. A yes that the kubelet refused is a figure of its own, beside what the caution costs.
"""

import time
from collections.abc import Iterator
from statistics import mean, median
from typing import Final

from bench.figure import Figure, NotMeasurableError
from koord_numa.core.kubelet.prediction import would_admit
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.admission import load
from tests.conformance.kubelet.seen import Score, judge, with_full_configuration, with_published_amounts
from tests.conformance.vectors import cases, files_of, folder

NAMES: Final = ("kubelet-admission",)

_TARGET_US: Final = 500.0
_ORACLE: Final = "kubelet-admission"


def figures() -> Iterator[Figure]:
    """Truth first, with full and with published knowledge, then the time of a decision."""
    sequences = [load(case) for file in files_of(_ORACLE, folder()) for case in cases(file)]
    if not sequences:
        raise NotMeasurableError(f"no {_ORACLE} among the recorded inputs")
    # Twice: with everything that the kubelet knows a wrong answer is a bug, with published amounts caution is allowed.
    known, seen = Score(), Score()
    asked: list[tuple[PodRequest, KubeletView]] = []
    for sequence in sequences:
        judge(sequence, with_full_configuration, known)
        judge(sequence, with_published_amounts, seen, asked)
    yield Figure(f"{_ORACLE} known: wrong yes", known.wrong_yes.total(), "pods", 0, note=f"of {known.steps}")
    yield Figure(f"{_ORACLE} known: wrong no", _percent(known), "%", 2)
    yield Figure(f"{_ORACLE} published: wrong yes", seen.wrong_yes.total(), "pods", 0)
    yield Figure(
        f"{_ORACLE} published: wrong no", _percent(seen), "%", 30, note="mostly CPU counts that may split cores"
    )
    # Each once, in the order of the sequences: repeated, all would be answered from caches.
    times = sorted(_microseconds(request, _unasked(view)) for request, view in asked)
    note = f"median {median(times):.0f}, p99 {times[len(times) * 99 // 100]:.0f}"
    yield Figure(f"{_ORACLE} mean", mean(times), "us", _TARGET_US, note=note)


def _percent(score: Score) -> float:
    return 100 * score.wrong_no.total() / score.admits


def _unasked(view: KubeletView) -> KubeletView:
    """The view as a decision first sees it: the managers remember what they were asked when the answers were judged."""
    states = [replace(one.state, managers=one.state.managers.copy()) for one in view.hypotheses]
    likely = [replace(one, state=state) for one, state in zip(view.hypotheses, states, strict=True)]
    return replace(view, hypotheses=tuple(likely))


def _microseconds(request: PodRequest, view: KubeletView) -> float:
    started = time.process_time_ns()
    would_admit(request, view)
    return (time.process_time_ns() - started) / 1000
