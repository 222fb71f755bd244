"""How the kubelet comes to refuse a pod: in a state, and in which state the scheduler takes it to."""

from collections.abc import Iterator
from itertools import chain, combinations, islice
from random import Random
from typing import Final

from koord_numa.core.kubelet.admit import Admitted, NotAdmitted, admit
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.inference.probes import Question
from koord_numa.core.kubelet.spreading.shares import answer
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import PodRequest
from tests.conformance.kubelet.churn import offered_at
from tests.conformance.kubelet.variants import taken_in_any_order
from tests.conformance.kubelet.worlds import Recorded

MOST_PAIRS: Final = 12
"""Of so many pods each two are taken away together."""

MOST_TOGETHER: Final = 250
"""So many different sets of three pods and four are taken away from one NUMA node."""

MOST_SETS: Final = 4_000
"""So many of them are compared."""

ORDERS: Final = 3
"""So many orders of devices are tried for a pod that asks for some."""


def refusing(state: KubeletState, request: PodRequest, most_away: int, dice: Random | None = None) -> str:
    """
    How the kubelet comes to refuse the pod, empty when it does not: as it is, or after one pod or more have left just now, unseen.

    That a pod has left just now nothing can contradict that was shown. With ``dice`` devices are taken in several orders.
    """
    ways: list[tuple[str, ...]] = [()]
    if most_away:
        ways += ((uid,) for uid in state.pods)
    if most_away > 1:
        ways += combinations(sorted(state.pods)[-MOST_PAIRS:], 2)
        ways += chain.from_iterable(_from_one_numa(state, numa) for numa in state.node.machine.numa_ids)
    tries = ORDERS if dice is not None and any(state.node.devices) and _asks_for_devices(request, state) else 1
    for away in ways:
        left = state
        for uid in away:
            left = left.without(uid)
        for number in range(tries):
            asked = taken_in_any_order(left, dice) if number and dice is not None else left
            verdict = admit(asked, "question", request)
            if not isinstance(verdict, Admitted):
                gone = f" without {' and '.join(away)}" if away else ""
                return f"refused{gone}: {verdict.refusal.reason}, {verdict.refusal.detail}"
    return ""


def _from_one_numa(state: KubeletState, numa: int) -> Iterator[tuple[str, ...]]:
    """Several pods that hold something on this NUMA node: together they may make room there that none of them makes alone."""
    here = state.node.machine.numa_bits[numa]
    there = [
        uid
        for uid, pod in state.pods.items()
        if any(
            one.cpus.bits & here or any(block.mask >> numa & 1 for block in one.memory) for one in pod.grant.containers
        )
    ]
    sets = chain.from_iterable(combinations(there, count) for count in (2, 3, 4))
    kinds = {tuple(sorted(repr(state.pods[uid].requests) for uid in away)): away for away in islice(sets, MOST_SETS)}
    return iter(list(kinds.values())[:MOST_TOGETHER])


def _asks_for_devices(request: PodRequest, state: KubeletState) -> bool:
    return any(part.devices.keys() & state.node.devices.keys() for _, part in pod_demand(request).containers)


def refused_by_scheduler(recorded: Recorded, index: int) -> KubeletState | None:
    """The state for which the scheduler refuses the pod of this question; ``None`` where it has asked none that does."""
    view = offered_at(recorded.case, index)
    if not isinstance(view, KubeletView):
        return None
    request = recorded.requests[recorded.events[index]["pod"]]
    for probe in Question(request, view).probes():
        if probe is None:
            return None
        if isinstance(answer(probe.state, request, probe.trust, probe.reuse, probe.shares), NotAdmitted):
            return probe.state
    return None
