"""
What the search for witnesses aims at: what the states for which the scheduler refuses a pod have in common with such a state.

Such a state says what each pod holds, and most of that has nothing to do with the refusal: with as many CPUs in use as there truly are on
another NUMA node the pod is refused as well. In a history that agrees in what does matter the pod is likely to be refused, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

from koord_numa.core import value_objects
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admit import NotAdmitted
from koord_numa.core.kubelet.demand import AdmitRejection, check_node_fit
from koord_numa.core.kubelet.inference.probes import Probe, Question
from koord_numa.core.kubelet.spreading.shares import answer
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.churn import offered_at
from tests.conformance.kubelet.worlds import Recorded

MOST_REFUSED: Final = 60
"""So many states for which the scheduler refuses the pod are looked at."""


@dataclass(frozen=True)
class Goal:
    """
    These pods have left, and the others hold so many CPUs of these NUMA nodes. ``lacking``: what the node as a whole is to have too little
    of for the pod, and how much it asks for.

    Any one of the pods may leave right before the question, whatever was shown.
    """

    gone: frozenset[str]
    used: tuple[tuple[int, int], ...]
    lacking: tuple[tuple[str, int], ...] = ()

    def apart(self, state: KubeletState) -> int:
        """How far a state is from that: CPUs that are in use or not, and pods that are still there."""
        taken = CpuSet()
        for uid, pod in state.pods.items():
            if uid not in self.gone:
                for one in pod.grant.containers:
                    taken |= one.cpus
        here = state.node.machine.numa_bits
        still = sum(1 for uid in self.gone if uid in state.pods)
        held = sum(abs((taken.bits & here[numa]).bit_count() - used) for numa, used in self.used)
        return max(0, still - 1) + held + self._too_much(state)

    def _too_much(self, state: KubeletState) -> int:
        """By how much the node as a whole has too much for the pod to be refused, in quarters of what it asks for."""
        node = state.node.allocatable
        free = ((node.get(name, 0) - state.requested.get(name, 0), needed) for name, needed in self.lacking)
        return min((max(0, 1 + (left - needed) * 4 // needed) for left, needed in free), default=0)


def _refused_by_scheduler(recorded: Recorded, index: int) -> list[Probe]:
    """The states that the scheduler asks for the pod of this question and for which it refuses it; none where it asks none."""
    view = offered_at(recorded.case, index)
    if not isinstance(view, KubeletView):
        return []
    request = recorded.requests[recorded.events[index]["pod"]]
    probes = takewhile(lambda probe: probe is not None, Question(request, view).probes())
    return list(islice((probe for probe in probes if probe is not None and _refuses(probe, request)), MOST_REFUSED))


def goals(recorded: Recorded, index: int, truth: KubeletState) -> list[Goal]:
    """What the states need for which the scheduler refuses the pod of this question, each once. ``truth``: the kubelet's state."""
    request = recorded.requests[recorded.events[index]["pod"]]
    found: dict[Goal, None] = {}
    for probe in _refused_by_scheduler(recorded, index):
        lacking = check_node_fit(effective_requests(request), probe.state.requested, probe.state.node.allocatable)
        if lacking is not None:
            found[Goal(frozenset(), (), _amounts(request, lacking))] = None
            continue
        goal = _goal(probe, request, truth)
        found[goal] = None
        # With as many CPUs in use the pods that are gone there may be here.
        found[replace(goal, gone=frozenset())] = None
    return list(found)


def _amounts(request: PodRequest, lacking: AdmitRejection) -> tuple[tuple[str, int], ...]:
    """What the node as a whole has too little of, and how much of it the pod asks for."""
    return tuple(
        (name, needed)
        for name, needed in effective_requests(request).items()
        if needed and lacking.reason == f"OutOf{name}"
    )


def _refuses(probe: Probe, request: PodRequest) -> bool:
    return isinstance(answer(probe.state, request, probe.trust, probe.reuse, probe.shares), NotAdmitted)


def _goal(probe: Probe, request: PodRequest, truth: KubeletState) -> Goal:
    """Of the state that is asked what the refusal needs: NUMA node after NUMA node is given as many free CPUs as are free in truth."""
    gone = {uid for uid in truth.pods if uid not in probe.state.pods and _holds(truth, uid)}
    without = truth
    for uid in gone:
        without = without.without(uid)
    used, needed = _used(probe.state), []
    for numa, true in _used(without).items():
        other = _with_used(probe, numa, true)
        if not probe.shares and _refuses(other, request):
            probe = other
        else:
            needed.append((numa, used[numa]))
    return Goal(frozenset(gone), tuple(needed))


def _holds(state: KubeletState, uid: str) -> bool:
    return any(one.cpus or one.memory or one.devices for one in state.pods[uid].grant.containers)


def _used(state: KubeletState) -> Mapping[int, int]:
    node = state.node
    return {
        numa: (here & ~state.managers.cpus & ~node.reserved).bit_count()
        for numa, here in node.machine.numa_bits.items()
    }


def _with_used(probe: Probe, numa: int, used: int) -> Probe:
    """The same with so many CPUs in use on this NUMA node, any of them."""
    node, managers = probe.state.node, probe.state.managers.copy()
    here = list(CpuSet(node.machine.numa_bits[numa] & ~node.reserved))
    free = [cpu for cpu in here if managers.cpus >> cpu & 1]
    taken = [cpu for cpu in here if not managers.cpus >> cpu & 1]
    more = used - len(taken)
    for cpu in free[: max(0, more)]:
        managers.cpus &= ~(1 << cpu)
    for cpu in taken[: max(0, -more)]:
        managers.cpus |= 1 << cpu
    return value_objects.replace(probe, state=value_objects.replace(probe.state, managers=managers))
