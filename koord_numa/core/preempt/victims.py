"""Selection of the pods to evict on a node, and of the node, with respect to PodDisruptionBudgets."""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final

from koord_numa.core.fit.volumes import refuse_claims, storage_without
from koord_numa.core.objects.constraints import DisruptionBudget, selects
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Alignment, Placement, Rejection
from koord_numa.core.ordering import candidate_order, importance
from koord_numa.core.preempt.dry_run import (
    ClaimId,
    DryRun,
    EvictionTerms,
    FreedDevices,
    PreemptionNode,
    Unit,
    answer_of,
)
from koord_numa.core.resources import ResourceList, subtract
from koord_numa.core.scheduling.filters import ScoredPlacement
from koord_numa.core.scheduling.request import SchedulingRequest, amounts_of_node, on_node
from koord_numa.core.value_objects import ValueObject

LIFT: Final = 1 << 31
"""Added to priorities before summing, so that negative priorities do not make many victims cheap (as kube-scheduler)."""

Price = tuple[int, int, int, int]


def price(victims: Sequence[Pod], violations: int) -> Price:
    """Return the cost of the victims: violations, highest priority, sum of priorities, number. No victims cost least."""
    priorities = [pod.request.priority for pod in victims]
    # Below every possible priority, so that no victims cost least.
    return (violations, max(priorities, default=-LIFT - 1), sum(each + LIFT for each in priorities), len(victims))


def latest_start(victims: Sequence[Pod]) -> float:
    """Return the earliest creation time of the victims with the highest priority. Later is better; infinite without victims."""
    if not victims:
        return float("inf")
    highest = max(pod.request.priority for pod in victims)
    return min(pod.created for pod in victims if pod.request.priority == highest)


def violating(victims: Iterable[Pod], budgets: Sequence[DisruptionBudget]) -> frozenset[str]:
    """
    Return the UIDs of the pods whose eviction violates a budget if all of these pods are evicted in this order.

    As in ``filterPodsWithPDBViolation`` of kube-scheduler, each covered victim uses an allowed disruption of its budget unless its eviction
    is counted already. In addition, as in ``registry/core/pod/storage/eviction.go`` of the API server: a pod under two budgets always
    violates them, a Pending pod violates none, and a pod that is not ready does not violate a budget that permits its eviction.
    """
    allowed = [budget.allowed for budget in budgets]
    broken = set()
    for pod in victims:
        covering = [index for index, budget in enumerate(budgets) if covers(budget, pod)]
        if pod.phase == "Pending":
            continue
        # The Eviction API rejects a pod under two budgets ("does not support"), so that it always counts as a
        # violation.
        if len(covering) > 1:
            broken.add(pod.key.uid)
        for index in covering:
            # Listed in ``disruptedPods``: the eviction is counted, and the budget's status will follow.
            if pod.key.name in budgets[index].disrupted or (len(covering) == 1 and lets_go(budgets[index], pod)):
                continue
            allowed[index] -= 1
            if allowed[index] < 0:
                broken.add(pod.key.uid)
    return frozenset(broken)


def protected(pod: Pod, budgets: Iterable[DisruptionBudget]) -> bool:
    """Return whether any budget covers this pod."""
    return any(covers(budget, pod) for budget in budgets)


def covers(budget: DisruptionBudget, pod: Pod) -> bool:
    """Return whether the budget covers the pod."""
    return budget.namespace == pod.key.namespace and selects(budget.selector, dict(pod.labels))


def lets_go(budget: DisruptionBudget, pod: Pod) -> bool:
    """Return whether a pod that is not ready may be evicted whatever the budget allows."""
    return not pod.ready and (budget.unhealthy_always or budget.healthy)


Suits = Callable[[Placement], bool]


class PreemptionCandidate(ValueObject):
    """
    Node with the pods to evict.

    ``victims`` are to be evicted, the most important first; ``violations`` of them violate a budget. They include the pods on other nodes
    that are disrupted together with a pod of this node. ``displaced`` are pods of lower priority that lose their nomination to the node.
    ``awaited`` are the UIDs of all pods of the node that must be gone before the pod fits: victims and terminating pods. ``claims`` lose
    their devices then.
    """

    node: str
    placement: Placement
    victims: tuple[Pod, ...] = ()
    violations: int = 0
    displaced: tuple[PodKey, ...] = ()
    awaited: frozenset[str] = frozenset()
    claims: frozenset[ClaimId] = frozenset()

    @property
    def waits_for_others(self) -> bool:
        """True if ``awaited`` has pods that are not victims: they terminate already."""
        return not self.awaited <= {pod.key.uid for pod in self.victims}


def select_victims_on_node(
    ask: SchedulingRequest, node: PreemptionNode, terms: EvictionTerms
) -> PreemptionCandidate | None:
    """
    Return the cheapest candidate on this node.

    ``None`` if no eviction helps, the pod fits without evictions, or the state of the node is not certain enough to evict pods.
    """
    if not node.trusted:
        return None
    # Without evictions first: a pod that fits needs none, and a rejection that evictions cannot resolve needs no dry
    # run.
    standing: ScoredPlacement | Placement | Rejection = answer_of(ask, node.seen, terms.rules)
    if isinstance(standing, ScoredPlacement) and terms.devices is not None:
        standing = terms.devices.place(node, node.seen, standing.placement, ())
    if not isinstance(standing, Rejection) or not standing.resolvable or not may_help(ask, node, terms.devices):
        return None
    first = _clear(ask, node, terms, _any)
    # A second search for an aligned placement is only worthwhile if the first placement is not aligned.
    if first is None or first.placement.alignment is Alignment.ALIGNED:
        return first
    better = _clear(ask, node, terms, _aligned)
    return first if better is None or _dearer(better, first) else better


def still_right(
    ask: SchedulingRequest, node: PreemptionNode, terms: EvictionTerms, candidate: PreemptionCandidate
) -> bool:
    """
    Return whether a candidate found before is still valid for this node. Checked last before an eviction.

    Valid means: the pod fits when every awaited pod is gone, each victim that is not terminating may and must be evicted, and no more
    budgets are violated than known.
    """
    if not node.trusted:
        return False
    trial = DryRun(ask, node, terms)
    priority = ask.request.priority
    there = [node.pods[uid] for uid in sorted(candidate.awaited) if uid in node.pods]
    victims = {victim.key.uid for victim in candidate.victims}
    left = [pod for pod in there if pod.key.uid in victims and not pod.deleting]
    if not all(trial.is_movable(pod.key.uid) for pod in there) or not all(may_go(p, priority, node) for p in left):
        # Every awaited pod must still release the expected amounts, and every victim must still be eligible.
        return False
    everyone = together(left, node)
    if not victims.issuperset(_uids(everyone)):
        return False  # a gang that is disrupted as one has got another member
    suits = _aligned if candidate.placement.alignment is Alignment.ALIGNED else _any
    trial.send_away([*lower_nominees(node, priority), *_uids(there)])
    # Each victim is tested separately: a pod that could stay is not evicted.
    units = units_on(left, node)
    needed = _suited(trial, suits) and len(_let_back(trial, units, suits)) == len(units)
    return needed and len(violating(everyone, terms.budgets)) <= candidate.violations


def may_help(ask: SchedulingRequest, node: PreemptionNode, devices: FreedDevices | None = None) -> bool:
    """
    Return whether there are pods to evict whose removal leaves sufficient amounts and devices, and frees the pod's volumes.

    Inexpensive; a necessary condition, not a sufficient condition.
    """
    priority = ask.request.priority
    away = {uid for uid, pod in node.pods.items() if may_go(pod, priority, node) or pod.deleting}
    away.update(lower_nominees(node, priority))
    # The total amounts of all these pods are an upper bound of what evictions free.
    if not away or not _frees_claims(ask, node, away):
        return False
    left: ResourceList = subtract(node.seen.allocatable, node.seen.ledger.amounts)
    holdings = node.seen.ledger.holdings
    for name, amount in amounts_of_node(on_node(ask, node.seen.node).amounts, node.seen).items():
        if amount > left.get(name, 0) + sum(holdings[uid].amounts.get(name, 0) for uid in away if uid in holdings):
            return False
    return devices is None or devices.may_suffice(node, away)


def may_go(pod: Pod, priority: int, node: PreemptionNode) -> bool:
    """
    Return whether the pod is a possible victim: lower priority, confirmed, and not a static pod, which the kubelet would keep running.

    The same must apply to all pods that are disrupted together with it.
    """
    unit = node.units.get(pod.key.uid, (pod,))
    return pod.key.uid not in node.assumed and all(it.request.priority < priority and not it.mirror for it in unit)


def units_on(pods: Iterable[Pod], node: PreemptionNode) -> list[Unit]:
    """Return these pods of the node in groups that are disrupted together, in the order of the first pods."""
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        unit = node.units.get(pod.key.uid, (pod,))
        found.setdefault(unit[0].key.uid, []).append(pod)
    return [tuple(unit) for unit in found.values()]


def together(pods: Iterable[Pod], node: PreemptionNode) -> list[Pod]:
    """Return these pods of the node and all that are disrupted together with them and not terminating, most important first."""
    found = {it.key.uid: it for pod in pods for it in node.units.get(pod.key.uid, (pod,)) if not it.deleting}
    return sorted(found.values(), key=importance)


def _frees_claims(ask: SchedulingRequest, node: PreemptionNode, away: Iterable[str]) -> bool:
    """Return whether the pod's claims can be freed on this node (VolumeRestrictions of kube-scheduler)."""
    if ask.storage is None:
        return True
    # A claim is freed if its users are on this node; users elsewhere keep it.
    storage = storage_without(ask.storage, node.seen.node.name, [node.pods[uid] for uid in away if uid in node.pods])
    return refuse_claims(ask.request, storage) is None


def lower_nominees(node: PreemptionNode, priority: int) -> list[str]:
    """Return the UIDs of pods of lower priority that are nominated to the node."""
    return sorted(uid for uid, nominee in node.nominees.items() if nominee.pod.request.priority < priority)


def _any(_placement: Placement) -> bool:
    return True


def _aligned(placement: Placement) -> bool:
    return placement.alignment is Alignment.ALIGNED


def _clear(
    ask: SchedulingRequest, node: PreemptionNode, terms: EvictionTerms, suits: Suits
) -> PreemptionCandidate | None:
    """
    Return the cheapest candidate with a suitable placement.

    Waiting for terminating pods is preferred, whatever their priority. If victims are needed too, only terminating pods of lower priority
    count: the evictions would have no effect while a terminating pod of equal or higher priority remains.
    """
    found = _clear_with(ask, node, terms, suits)
    priority = ask.request.priority
    # Terminating pods that are equally important hold their amounts until they are gone, and evictions do not shorten
    # that.
    important = {uid for uid, pod in node.pods.items() if pod.deleting and pod.request.priority >= priority}
    if found is None or not found.victims or found.awaited.isdisjoint(important):
        return found
    return _clear_with(ask, node, terms, suits, staying=important)


def _clear_with(
    ask: SchedulingRequest,
    node: PreemptionNode,
    terms: EvictionTerms,
    suits: Suits,
    staying: Container[str] = frozenset(),
) -> PreemptionCandidate | None:
    trial = DryRun(ask, node, terms)
    priority = ask.request.priority
    displaced = lower_nominees(node, priority)
    movable = {uid for uid in node.pods if uid not in staying and trial.is_movable(uid)}
    leaving = sorted((pod for uid, pod in node.pods.items() if pod.deleting and uid in movable), key=importance)
    possible = (pod for pod in node.pods.values() if not pod.deleting and may_go(pod, priority, node))
    # What is disrupted together frees what it holds here, or is no victim.
    units = [unit for unit in units_on(sorted(possible, key=importance), node) if movable.issuperset(_uids(unit))]
    candidates = [pod for unit in units for pod in unit]
    trial.send_away([*displaced, *_uids(leaving), *_uids(candidates)])
    if not _suited(trial, suits):
        return None
    broken = violating(together(candidates, node), terms.budgets)
    spared_first = sorted(
        units, key=lambda unit: broken.isdisjoint(_uids(together(unit, node)))
    )  # stable: by importance within
    away = [pod for unit in _stay_away(trial, [*spared_first, *((pod,) for pod in leaving)], suits) for pod in unit]
    placement = trial.answer()
    if placement is None:
        raise AssertionError(f"a pod that was let back in on {node.seen.node.name} took a place that was not there")
    chosen = tuple(together((pod for pod in away if not pod.deleting), node))
    return PreemptionCandidate(
        node=node.seen.node.name,
        placement=placement,
        victims=chosen,
        violations=len(violating(chosen, terms.budgets)),
        displaced=tuple(node.nominees[uid].pod.key for uid in displaced),
        awaited=frozenset(_uids(away)),
        claims=frozenset() if terms.devices is None else terms.devices.awaited(node, (*_uids(away), *displaced)),
    )


def _stay_away(trial: DryRun, units: Sequence[Unit], suits: Suits) -> list[Unit]:
    """Return the units that must be evicted. All others are restored, in rounds that end when a round restores no unit."""
    away = _let_back(trial, units, suits)
    # Repeated: a restored pod may allow another by exclusivity or the choice of NUMA nodes, though not by amounts.
    while not all(trial.lacks_amounts_with(_uids(unit)) for unit in away):
        fewer = _let_back(trial, away, suits)
        if len(fewer) == len(away):
            break
        away = fewer
    return away


def _let_back(trial: DryRun, units: Sequence[Unit], suits: Suits) -> list[Unit]:
    """Restore every unit with which the preemptor still fits. Return the other units."""
    away = []
    for unit in units:
        uids = _uids(unit)
        if trial.lacks_amounts_with(uids):
            away.append(unit)
            continue
        trial.let_back(uids)
        if not _suited(trial, suits):
            # It stays removed, and the remaining units are tested without it.
            trial.send_away(uids)
            away.append(unit)
    return away


def _suited(trial: DryRun, suits: Suits) -> bool:
    placement = trial.answer()
    return placement is not None and suits(placement)


def _dearer(one: PreemptionCandidate, other: PreemptionCandidate) -> bool:
    return price(one.victims, one.violations) > price(other.victims, other.violations)


def _uids(pods: Sequence[Pod]) -> list[str]:
    return [pod.key.uid for pod in pods]


Rank = tuple[Price, bool, bool, float, str]


def rank(candidate: PreemptionCandidate) -> Rank:
    """Return the sort key of a candidate, best first."""
    return candidate_order(
        price(candidate.victims, candidate.violations),
        # More awaited than evicted: pods are terminating, so that waiting may be sufficient.
        is_waited_for=candidate.waits_for_others,
        is_aligned=candidate.placement.alignment is Alignment.ALIGNED,
        latest_start=latest_start(candidate.victims),
        node=candidate.node,
    )
