"""Which evictions a PodDisruptionBudget forbids. It counts; it chooses no victim."""

from collections.abc import Iterable, Sequence

from koord_numa.core.objects.budgets import DisruptionBudget
from koord_numa.core.objects.request import Pod
from koord_numa.core.selectors import selects


def violating(victims: Iterable[Pod], budgets: Sequence[DisruptionBudget]) -> frozenset[str]:
    """
    The uids of those whose eviction breaks a budget when all of these are evicted in this order.

    As kube-scheduler's ``filterPodsWithPDBViolation``: every covered victim uses up one allowed disruption of its budget, unless
    its eviction is counted already. Beyond that as the API server's ``registry/core/pod/storage/eviction.go``: a pod under two budgets
    breaks one in any case, one that is still Pending breaks none, and one that is not ready none that lets it go.
    """
    allowed = [budget.allowed for budget in budgets]
    broken = set()
    for pod in victims:
        covering = [index for index, budget in enumerate(budgets) if covers(budget, pod)]
        if pod.phase == "Pending":
            continue
        # The eviction API refuses a pod under two budgets ("does not support"), so it always counts as a violation.
        if len(covering) > 1:
            broken.add(pod.key.uid)
        for index in covering:
            # Named in ``disruptedPods``: the eviction controller has counted it, and its status will follow.
            if pod.key.name in budgets[index].disrupted or (len(covering) == 1 and lets_go(budgets[index], pod)):
                continue
            allowed[index] -= 1
            if allowed[index] < 0:
                broken.add(pod.key.uid)
    return frozenset(broken)


def protected(pod: Pod, budgets: Iterable[DisruptionBudget]) -> bool:
    """Does any budget cover this pod?"""
    return any(covers(budget, pod) for budget in budgets)


def covers(budget: DisruptionBudget, pod: Pod) -> bool:
    """Is the pod one of those that the budget protects?"""
    return budget.namespace == pod.key.namespace and selects(budget.selector, dict(pod.labels))


def lets_go(budget: DisruptionBudget, pod: Pod) -> bool:
    """May a pod that is not ready be evicted whatever the budget still allows?"""
    return not pod.ready and (budget.unhealthy_always or budget.healthy)
