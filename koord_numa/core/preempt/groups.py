"""
Evictions that make a group of pods fit, with the whole cluster as one domain (KEP-5710, kube-scheduler's workload-aware preemption).

All evictable pods are removed from the candidate nodes, and the group is decided on there. The highest priority of the victims is
minimized, then every pod is restored with which the members still fit. Gangs that are disrupted together are removed and restored as one.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Final

from koord_numa.core.objects.claims import Allocation
from koord_numa.core.objects.constraints import DisruptionBudget
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.ordering import importance
from koord_numa.core.preempt.dry_run import (
    ClaimId,
    EvictionTerms,
    NodeTrial,
    PreemptionNode,
    Unit,
    placed_at,
    request_after,
)
from koord_numa.core.preempt.victims import lower_nominees, may_go, protected, units_on, violating
from koord_numa.core.scheduling.gangs import Domain, Group, Member, Pause, Placed, Steps, decide_in_steps
from koord_numa.core.scheduling.request import SchedulingRequest, on_node
from koord_numa.core.value_objects import ValueObject, replace, value_field


class Limits(ValueObject):
    """Bounds of one plan for a group."""

    dry_runs: int = 4_000  # evaluations of a member on a node, about 2 ms each
    turn: int = 4  # dry runs until other tasks run
    rounds: int = 2  # rounds in which pods are restored


LIMITS: Final = Limits()


class Preemptor(ValueObject):
    """Member of the group with its request in the current state. ``may_use`` returns whether the member may go to a node."""

    pod: Pod
    ask: SchedulingRequest
    terms: EvictionTerms
    may_use: Callable[[str], bool] = lambda _node: True

    @property
    def looks_around(self) -> bool:
        """True if the placement depends on affinity, spreading or storage beyond the node, or on devices."""
        ask = self.ask
        around = ask.neighbours is not None or ask.spread is not None or ask.storage is not None
        return around or self.terms.devices is not None


class GroupCandidate(ValueObject):
    """
    Placements of the members by UID, in the order of the decisions, and the pods to evict.

    ``awaited`` are the UIDs of the pods, by node of a member, that must be gone before the group fits: victims and terminating pods.
    ``violations`` of the victims violate a budget. ``displaced`` are pods of lower priority that lose their nomination. ``claims`` lose
    their devices.
    """

    placements: Mapping[str, Placement]
    victims: tuple[Pod, ...] = ()
    violations: int = 0
    displaced: tuple[PodKey, ...] = ()
    awaited: Mapping[str, frozenset[str]] = value_field(default_factory=dict)
    claims: frozenset[ClaimId] = frozenset()

    @property
    def changes_anything(self) -> bool:
        """True if any pod has to leave or loses its nomination."""
        return bool(self.displaced or any(self.awaited.values()))


Removal = Callable[[PreemptionNode, NodeTrial], Iterable[str]]
"""UIDs of the pods and nominees that are removed from a node."""


class _TurnOver(Exception):
    """Raised when a turn has used its dry runs."""


class EvictionTrial:
    """``core.scheduling.gangs.Trial`` on copies of the candidate nodes, without the pods that ``removal`` names."""

    def __init__(self, plan: "GroupEvictions", removal: Removal) -> None:
        self._plan = plan
        self._removal = removal
        self._trials: dict[str, NodeTrial] = {}
        self._at: dict[str, str] = {}  # nodes of the assumed members by UID
        self._allocations: dict[str, tuple[Allocation, ...]] = {}  # their devices
        self._changes: Counter[str] = Counter()  # by node, and under the empty name for all nodes
        self._known: dict[tuple[Hashable, str], tuple[int, Placement | None]] = {}
        self._turn: int | None = None  # dry runs that this turn may still make

    def choose(self, member: Member, nodes: frozenset[str] | None) -> Placement | Pause | None:
        """As ``Trial.choose``: nodes of other members first, then the nodes in their order."""
        self._turn = LIMITS.turn
        used = dict.fromkeys(self._at.values())
        try:
            for name in (*used, *(it for it in self._plan.nodes if it not in used)):
                if nodes is None or name in nodes:
                    placement = self._on(member, name)
                    if placement is not None:
                        return placement
        except _TurnOver:
            return Pause.PAUSE
        finally:
            self._turn = None
        return None

    def assume(self, member: Member, placement: Placement) -> None:
        """As ``Trial.assume``."""
        self.put(member.uid, placement)

    def undo(self, *members: Member) -> None:
        """As ``Trial.undo``."""
        for member in members:
            self._take(member.uid)

    def domains(self, keys: Sequence[str]) -> Sequence[Domain]:
        """As ``Trial.domains``, with a candidate node. Evictions make room, so that the free amounts are no bound."""
        nodes = self._plan.nodes.keys()
        return [replace(it, rooms=None) for it in self._plan.domains(keys) if not nodes.isdisjoint(it.nodes)]

    def put(self, uid: str, placement: Placement) -> None:
        """Assume a member."""
        self._trial(placement.node).assume(self._plan.preemptors[uid].pod, placement)
        self._at[uid] = placement.node
        if placement.allocations:
            self._allocations[uid] = placement.allocations
        self._changed(placement.node)

    def place(self, uid: str, name: str) -> Placement | None:
        """Return the placement of a member on a node now, with every pod that is assumed."""
        plan, trial, preemptor = self._plan, self._trial(name), self._plan.preemptors[uid]
        terms, ask = preemptor.terms, preemptor.ask
        if preemptor.looks_around:
            gone = [(it.node.seen.node, pod) for it in self._trials.values() for pod in it.pods_gone()]
            come = [(self._node(node), self._assumed(other)) for other, node in self._at.items()]
            ask = request_after(ask, gone, terms.namespaces, come)
        plan.left -= 1
        if terms.devices is None:
            return trial.place(ask, terms)
        away = [uid for it in self._trials.values() for uid in it.gone]
        taken = [allocation for found in self._allocations.values() for allocation in found]
        return trial.place(ask, terms, away, taken)

    def reprieve(self) -> Steps[GroupCandidate | None]:
        """Restore the pods with which the assumed members still fit on their nodes, and return the others as victims."""
        used = list(dict.fromkeys(self._at.values()))
        away = self._restorable(used)
        for _ in range(LIMITS.rounds):
            left = []
            for unit in away:
                yield
                if not self.let_back(unit):
                    left.append(unit)
            if len(left) == len(away):
                break
            away = left
        # Placements may have changed with the restored pods.
        return self._candidate(used, away) if all(self._refits(name) for name in used) else None

    def let_back(self, unit: Unit) -> bool:
        """Restore the removed pods of a unit, unless a member does not fit then. Return whether they were restored."""
        used = dict.fromkeys(self._at.values())
        here = {name: [uid for uid in _uids(unit) if uid in self._trial(name).gone] for name in used}
        here = {name: uids for name, uids in here.items() if uids}
        if any(self._trial(name).overfull(uids) for name, uids in here.items()):
            return False
        for name, uids in here.items():
            self._trial(name).let_back(uids)
            self._changed(name)
        if all(self._refits(name) for name in (used if self._plan.looks_around else here)):
            return True
        for name, uids in here.items():
            self._trial(name).send_away(uids)
            self._changed(name)
        return False

    def pods_gone(self, name: str) -> list[Pod]:
        """Return the pods that are removed from a node."""
        return self._trial(name).pods_gone()

    def is_movable(self, name: str, uid: str) -> bool:
        """Return whether the amounts that this pod of the node would release are certain."""
        return self._trial(name).is_movable(uid)

    def _restorable(self, used: Sequence[str]) -> list[Unit]:
        """Return the removed units, first those whose eviction violates a budget, then by importance; terminating pods last."""
        units: dict[str, Unit] = {}
        leaving: list[Unit] = []
        for name in used:
            trial = self._trial(name)
            for pod in trial.pods_gone():
                if pod.deleting:
                    leaving.append((pod,))
                else:
                    unit = trial.node.units.get(pod.key.uid, (pod,))
                    units[unit[0].key.uid] = unit
        broken = violating(_everyone(units.values()), self._plan.budgets)
        order = sorted(units.values(), key=lambda unit: (broken.isdisjoint(_uids(unit)), importance(unit[0])))
        return [*order, *leaving]

    def _candidate(self, used: Sequence[str], away: Sequence[Unit]) -> GroupCandidate:
        plan = self._plan
        victims = tuple(_everyone(away))
        awaited = {name: frozenset(_uids(self._trial(name).pods_gone())) for name in used}
        placements = {uid: it.placement for name in used for uid, it in self._trial(name).assumed.items()}
        nominees = (self._trial(name).node.nominees for name in used)
        displaced = [
            it.pod.key for found in nominees for it in found.values() if it.pod.request.priority < plan.priority
        ]
        claims: set[ClaimId] = set()
        everyone_gone = [uid for name in used for uid in self._trial(name).gone]
        for uid, node in self._at.items():
            if (devices := plan.preemptors[uid].terms.devices) is not None:
                claims |= devices.awaited(self._trial(node).node, everyone_gone)
        return GroupCandidate(
            {uid: placements[uid] for uid in self._at},
            victims,
            len(violating(victims, plan.budgets)),
            tuple(displaced),
            awaited,
            frozenset(claims),
        )

    def _on(self, member: Member, name: str) -> Placement | None:
        plan, preemptor = self._plan, self._plan.preemptors[member.uid]
        version = self._changes["" if preemptor.looks_around else name]
        known = self._known.get((member.kind, name))
        if known is not None and known[0] == version:
            return known[1]
        placement = None
        if preemptor.may_use(name) and not self._trial(name).lacks(on_node(preemptor.ask, self._node(name)).amounts):
            if plan.left <= 0:
                return None
            if self._turn == 0:
                raise _TurnOver
            self._turn = None if self._turn is None else self._turn - 1
            placement = self.place(member.uid, name)
        self._known[member.kind, name] = (version, placement)
        return placement

    def _refits(self, name: str) -> bool:
        """Place the members of a node again, in their order. Return whether all fit; otherwise they stay as they were."""
        before = {uid: it.placement for uid, it in self._trial(name).assumed.items()}
        for uid in before:
            self._take(uid)
        now: dict[str, Placement] = {}
        for uid in before:
            placement = self.place(uid, name)
            if placement is None:
                break
            now[uid] = placement
            self.put(uid, placement)
        if len(now) == len(before):
            return True
        for uid in now:
            self._take(uid)
        for uid, placement in before.items():
            self.put(uid, placement)
        return False

    def _trial(self, name: str) -> NodeTrial:
        trial = self._trials.get(name)
        if trial is None:
            node = self._plan.nodes[name]
            trial = self._trials[name] = NodeTrial(node)
            trial.send_away(self._removal(node, trial))
        return trial

    def _take(self, uid: str) -> None:
        node = self._at.pop(uid)
        self._trial(node).undo(uid)
        self._allocations.pop(uid, None)
        self._changed(node)

    def _changed(self, name: str) -> None:
        self._changes[name] += 1
        self._changes[""] += 1

    def _node(self, name: str) -> Node:
        return self._plan.nodes[name].seen.node

    def _assumed(self, uid: str) -> Pod:
        there = self._trial(self._at[uid]).assumed[uid]
        return placed_at(there.pod, there.placement)


class GroupEvictions:
    """
    Plan for one group. ``nodes`` are copies of the candidate nodes, in the order of preference.

    ``preemptors`` are the members by UID. ``left`` is the number of dry runs that the plan may still make.
    """

    def __init__(
        self,
        nodes: Mapping[str, PreemptionNode],
        preemptors: Mapping[str, Preemptor],
        domains: Callable[[Sequence[str]], Sequence[Domain]] = lambda _keys: (),
    ) -> None:
        self.nodes = nodes
        self.preemptors = preemptors
        self.domains = domains
        self.left = LIMITS.dry_runs
        self.priority = min(it.pod.request.priority for it in preemptors.values())
        self.budgets: Sequence[DisruptionBudget] = next(iter(preemptors.values())).terms.budgets
        self.looks_around = any(it.looks_around for it in preemptors.values())

    def find(self, group: Group) -> Steps[GroupCandidate | None]:
        """
        Return the evictions after which all members of ``group`` fit; ``None`` if there are none.

        Waiting for terminating pods is preferred. Then pods are spared that a budget protects, as long as others suffice.
        """
        found = yield from self._attempt(group, self._terminating)
        if found is not None:
            return found if found.changes_anything else None
        units = self._units()
        covered = [unit for unit in units if any(protected(pod, self.budgets) for pod in unit)]
        certain = [unit for unit in covered if violating(unit, self.budgets)]
        excess = violating(reversed(_everyone(covered)), self.budgets)
        best: GroupCandidate | None = None
        # The victims of the first level may exceed a budget together, those of the next two cannot.
        for spared in dict.fromkeys((_all_uids(certain), excess, _all_uids(covered), frozenset[str]())):
            found = yield from self._cheapest(group, units, spared)
            if found is not None and (best is None or found.violations < best.violations):
                best = found
            if best is not None and not best.violations:
                break
        return best

    def confirms(self, candidate: GroupCandidate) -> bool:
        """
        Return whether a candidate is still valid in the current state of its nodes (``nodes``).

        As ``still_right`` for a single pod: all members fit without the awaited pods, every victim that is not terminating may be evicted
        and is needed, and no further budget is violated.
        """

        def awaited(node: PreemptionNode, _trial: NodeTrial) -> list[str]:
            gone = [uid for uid in sorted(candidate.awaited.get(node.seen.node.name, ())) if uid in node.pods]
            return [*lower_nominees(node, self.priority), *gone]

        trial = EvictionTrial(self, awaited)
        units = self._left(trial, candidate)
        if units is None:
            return False
        for uid, placement in candidate.placements.items():
            again = trial.place(uid, placement.node) if self.preemptors[uid].may_use(placement.node) else None
            if again is None:
                return False
            trial.put(uid, again)
        is_needed = not any(trial.let_back(unit) for unit in units)
        return is_needed and len(violating(_everyone(units), self.budgets)) <= candidate.violations

    def _left(self, trial: EvictionTrial, candidate: GroupCandidate) -> list[Unit] | None:
        """Return the victims that are not evicted yet; ``None`` when they may not be evicted or would not release what was expected."""
        victims, units = set(_uids(candidate.victims)), dict[str, Unit]()
        for name in candidate.awaited:
            node = self.nodes.get(name)
            if node is None or not node.trusted:
                return None
            for pod in trial.pods_gone(name):
                unit = node.units.get(pod.key.uid, (pod,))
                is_left = not pod.deleting and pod.key.uid in victims
                is_valid = may_go(pod, self.priority, node) and victims.issuperset(_uids(_everyone([unit])))
                if not trial.is_movable(name, pod.key.uid) or (is_left and not is_valid):
                    return None
                if is_left:
                    units[unit[0].key.uid] = unit
        return list(units.values())

    def _attempt(self, group: Group, removal: Removal) -> Steps[GroupCandidate | None]:
        trial = EvictionTrial(self, removal)
        answer = yield from decide_in_steps(trial, group)
        if not isinstance(answer, Placed):
            return None
        for uid, placement in answer.placements.items():
            trial.put(uid, placement)
        return (yield from trial.reprieve())

    def _cheapest(self, group: Group, units: Collection[Unit], spared: frozenset[str]) -> Steps[GroupCandidate | None]:
        """Return the evictions whose most important victim has the lowest priority."""
        priorities = sorted({_priority(unit) for unit in units if spared.isdisjoint(_uids(unit))})
        if not priorities:
            return None
        best = yield from self._attempt(group, self._up_to(priorities[-1], spared))
        low, high = 0, len(priorities) - 1
        while best is not None and low < high:
            # A victim's own priority may be below the limit.
            high = min(high, bisect_left(priorities, _priority(best.victims))) if best.victims else 0
            if low >= high:
                break
            middle = (low + high) // 2
            found = yield from self._attempt(group, self._up_to(priorities[middle], spared))
            if found is None:
                low = middle + 1
            else:
                best, high = found, middle
        return best

    def _up_to(self, priority: int, spared: frozenset[str]) -> Removal:
        """Return the removal of lower nominees, terminating pods of lower priority, and pods up to this priority."""

        def removal(node: PreemptionNode, trial: NodeTrial) -> list[str]:
            gone = lower_nominees(node, self.priority)
            for unit in units_on(node.pods.values(), node):
                stay = [pod for pod in unit if not pod.deleting]
                uids = _uids(stay)
                gone += [
                    pod.key.uid
                    for pod in unit
                    if pod.deleting and pod.request.priority < self.priority and trial.is_movable(pod.key.uid)
                ]
                everyone = node.units.get(unit[0].key.uid, unit)
                is_victim = all(may_go(pod, self.priority, node) for pod in stay) and _priority(everyone) <= priority
                if is_victim and spared.isdisjoint(_uids(everyone)) and all(map(trial.is_movable, uids)):
                    gone += uids
            return gone

        return removal

    def _terminating(self, node: PreemptionNode, trial: NodeTrial) -> list[str]:
        leaving = [uid for uid, pod in node.pods.items() if pod.deleting and trial.is_movable(uid)]
        return [*lower_nominees(node, self.priority), *leaving]

    def _units(self) -> list[Unit]:
        """Return everything that may be evicted on the candidate nodes."""
        found: dict[str, Unit] = {}
        for node in self.nodes.values():
            for pod in node.pods.values():
                if not pod.deleting and may_go(pod, self.priority, node):
                    unit = node.units.get(pod.key.uid, (pod,))
                    found[unit[0].key.uid] = unit
        return list(found.values())


def _uids(pods: Iterable[Pod]) -> list[str]:
    return [pod.key.uid for pod in pods]


def _all_uids(units: Iterable[Unit]) -> frozenset[str]:
    return frozenset(uid for unit in units for uid in _uids(unit))


def _everyone(units: Iterable[Unit]) -> list[Pod]:
    """Return the pods of these units that are not terminating, the most important first."""
    found = {pod.key.uid: pod for unit in units for pod in unit if not pod.deleting}
    return sorted(found.values(), key=importance)


def _priority(pods: Iterable[Pod]) -> int:
    return max(pod.request.priority for pod in pods)
