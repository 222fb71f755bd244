"""
What pods request beyond exclusive CPUs: no interrupts on these CPUs, and empty sibling threads.

A pod requests it by annotation, a Node by label for all pods with a cpuset. This module decides and has no effects:
``applier.py`` leaves siblings out of the shared pools, and ``interrupts.py`` moves interrupts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import CpuIsolation
from koord_numa.node.decided import DecidedPod
from koord_numa.node.sysfs import Host

_WORDS = frozenset(word.value for word in CpuIsolation)


@dataclass(frozen=True, slots=True)
class IsolationPlan:
    """
    The isolation of a node.

    ``quiet`` are the CPUs without interrupts, ``empty`` the sibling threads that no container may use. ``steered`` are
    the UIDs of the pods that requested quiet CPUs. ``refusals`` are the reasons, by UID, why a request is not honored.
    """

    quiet: CpuSet = EMPTY
    empty: CpuSet = EMPTY
    steered: tuple[str, ...] = ()
    refusals: Mapping[str, str] = field(default_factory=dict)


def isolation_plan(host: Host, pods: Iterable[DecidedPod], of_node: frozenset[str] = frozenset()) -> IsolationPlan:
    """Return the isolation that the pods request. ``of_node`` are the words of the Node's label."""
    pods = tuple(pods)
    requested = [(pod, words) for pod in pods if (words := _requested(pod, of_node))]
    if not requested:
        return IsolationPlan()
    holders = {cpu: pod for pod in pods for cpu in pod.cpus}
    held, cores = CpuSet.of(holders), host.cores()
    quiet, empty, steered, refusals = EMPTY, EMPTY, [], {}
    for pod, words in requested:
        reasons = []
        if unknown := sorted(words - _WORDS):
            reasons.append(f"{', '.join(unknown)[:100]} is none of {', '.join(sorted(_WORDS))}")
        if not pod.cpus:
            reasons.append("the pod has no CPUs of its own")
        siblings = EMPTY
        for cpu in pod.cpus if CpuIsolation.SIBLINGS in words else ():
            siblings |= cores.get(cpu, EMPTY)
        siblings -= pod.cpus
        if taken := siblings & held:
            others = sorted({holders[cpu].key for cpu in taken})
            reasons.append(f"sibling threads {taken} of its CPUs are held by {', '.join(others[:3])}")
        empty |= siblings - held
        if CpuIsolation.INTERRUPTS in words and pod.cpus:
            quiet |= pod.cpus | siblings - held
            steered.append(pod.uid)
        if reasons:
            refusals[pod.uid] = "; ".join(reasons)
    return IsolationPlan(quiet & host.cpu_set, empty, tuple(steered), refusals)


def refused_plan(pods: Iterable[DecidedPod], of_node: frozenset[str], why: str) -> IsolationPlan:
    """Return the plan of a node where nothing may be isolated, for one reason."""
    return IsolationPlan(refusals={pod.uid: why for pod in pods if _requested(pod, of_node)})


def _requested(pod: DecidedPod, of_node: frozenset[str]) -> frozenset[str]:
    """Return the words that apply to a pod. ``isolcpus`` alone needs no agent: the scheduler has chosen the CPUs."""
    words = pod.isolation | of_node if pod.cpus else pod.isolation
    return frozenset() if pod.problem or words <= {CpuIsolation.ISOLCPUS.value} else words
