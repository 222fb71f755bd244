"""Which evictions a PodDisruptionBudget forbids. It counts; it chooses nobody."""

from collections.abc import Iterable, Sequence

from koord_numa.core.budgets import DisruptionBudget
from koord_numa.core.request import Pod
from koord_numa.core.selectors import selects


def violating(victims: Iterable[Pod], budgets: Sequence[DisruptionBudget]) -> frozenset[str]:
    """
    The uids of those whose eviction breaks a budget when all of these are evicted in this order.

    As kube-scheduler's ``filterPodsWithPDBViolation``: every covered victim uses up one allowed disruption of its budget, unless
    its eviction is counted already. A pod under two budgets breaks one in any case: the API server refuses to evict it.
    """
    allowed = [budget.allowed for budget in budgets]
    broken = set()
    for pod in victims:
        labels = dict(pod.labels)
        covering = [
            index
            for index, budget in enumerate(budgets)
            if budget.namespace == pod.key.namespace and selects(budget.selector, labels)
        ]
        if len(covering) > 1:
            broken.add(pod.key.uid)
        for index in covering:
            if pod.key.name in budgets[index].disrupted:
                continue
            allowed[index] -= 1
            if allowed[index] < 0:
                broken.add(pod.key.uid)
    return frozenset(broken)


def protected(pod: Pod, budgets: Iterable[DisruptionBudget]) -> bool:
    """Does any budget cover this pod?"""
    labels = dict(pod.labels)
    return any(budget.namespace == pod.key.namespace and selects(budget.selector, labels) for budget in budgets)
