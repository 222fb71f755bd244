"""
Where the members of a group go: all of them are tried in one state, and nothing is bound unless every gang has its minimal count.

The search stands on a ``Trial``: the cluster in the state of one moment, in which members are assumed one by one, with everything that a
single pod's decision counts. Members go largest first. A member that fits nowhere makes room by moving members that are placed already;
when that fails, the search starts again with that member first. kube-scheduler tries one order and moves nothing (kubernetes#138765).
"""

from collections import Counter
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol, TypeVar

from koord_numa.core.gangs.model import GangKey, TopologyLevel
from koord_numa.core.objects.verdicts import Alignment, Placement
from koord_numa.core.value_objects import ValueObject, replace

T = TypeVar("T")
Moved = Mapping[str, Placement]
"""Placements by uid of members that other tasks have moved during an interruption."""

Steps = Generator[None, Moved | None, T]
"""Search that other tasks may interrupt at every ``yield``. What is sent has the assumed members that are placed otherwise since."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one decision about a group."""

    extra_choices: int = 256  # decisions about single members beyond one for each; about 50 ms at 0.2 ms each
    orders: int = 6  # starts with another order of the members
    chain: int = 2  # members that move, one for another, to make room for a member
    domains: int = 64  # topology domains that are tried


LIMITS: Final = Limits()


class Member(ValueObject):
    """
    A pod of the group without a node. Members of equal ``kind`` are placed alike. ``size`` sorts kinds, the largest or most constrained
    first when descending.
    """

    uid: str
    gang: GangKey
    kind: Hashable
    size: tuple[int, ...] = ()


class Domain(ValueObject):
    """Nodes with the same values of topology labels. ``name`` shows these values; ``free`` is their free CPU in milli-CPU."""

    name: str
    nodes: frozenset[str]
    free: int = 0


class Group(ValueObject):
    """What is decided on. ``missing`` has the members that must be placed at least, by gang; ``levels`` are topology constraints."""

    members: tuple[Member, ...]
    missing: Mapping[GangKey, int]
    levels: tuple[TopologyLevel, ...] = ()


class Pause(Enum):
    """Result of a choice that continues when it is asked for again."""

    PAUSE = "pause"


class Trial(Protocol):
    """The cluster in the state of one moment. What is assumed counts for what is chosen after it, until it is undone."""

    def choose(self, member: Member, nodes: frozenset[str] | None) -> Placement | Pause | None:
        """Return the best placement now, on one of these nodes (``None``: any); ``None`` when no node takes the member."""
        ...

    def assume(self, member: Member, placement: Placement) -> None:
        """Count the member at this placement."""
        ...

    def undo(self, member: Member) -> None:
        """Count the member no more."""
        ...

    def domains(self, keys: Sequence[str]) -> Sequence[Domain]:
        """Return the domains by these labels that the group's scheduled members permit."""
        ...


class DomainResult(ValueObject):
    """What a domain offered: how many members were placed, of how many, and the first that was not."""

    name: str
    placed: int
    members: int
    failed: str = ""


class Placed(ValueObject):
    """The placements by uid, in the order in which they were decided. ``left`` are members beyond the minimal counts that fit nowhere."""

    placements: Mapping[str, Placement]
    left: tuple[str, ...] = ()
    domain: str = ""


class Refused(ValueObject):
    """
    The group does not fit. ``failed`` is the member that fits nowhere ``beside`` the others that were placed, in this order; ``domains``
    are the results by domain, the best first, for groups with a topology constraint. ``exhausted``: the search was cut off.
    """

    gang: GangKey
    failed: str
    beside: Mapping[str, Placement]
    missing: int
    nodes: frozenset[str] | None = None
    domains: tuple[DomainResult, ...] = ()
    exhausted: bool = False


@dataclass(slots=True)
class _Search:
    """Attempts on one set of nodes. ``done`` has the placements in the order of the decisions; ``spare`` bounds further decisions."""

    trial: Trial
    group: Group
    nodes: frozenset[str] | None
    spare: int
    limits: Limits
    done: dict[str, tuple[Member, Placement]] = field(default_factory=dict)
    failed: dict[Hashable, Member] = field(default_factory=dict)
    moved: bool = False
    stuck: bool = False  # a member that was moved cannot be put back

    def run(self, order: Sequence[Member]) -> Steps[Member | None]:
        """Place the members in this order. Return the member that makes a minimal count impossible, ``None`` when there is none."""
        remaining = Counter(member.gang for member in order)
        placed: Counter[GangKey] = Counter()
        for member in order:
            remaining[member.gang] -= 1
            if member.kind not in self.failed and (yield from self._place(member)):
                placed[member.gang] += 1
                continue
            # Members of one kind are refused alike, until another member has moved.
            first = self.failed.setdefault(member.kind, member)
            if self.stuck or placed[member.gang] + remaining[member.gang] < self.group.missing.get(member.gang, 0):
                return first
        return None if not self.moved or (yield from self._repeat()) else order[0]

    def clear(self) -> None:
        """Undo everything, the last member first."""
        for member, _ in reversed(self.done.values()):
            self.trial.undo(member)
        self.done.clear()
        self.failed.clear()
        self.moved = self.stuck = False

    def _place(self, member: Member) -> Steps[bool]:
        if (yield from self._put(member, self.nodes)):
            return True
        return (yield from self._make_room(member, self.limits.chain, frozenset()))

    def _put(self, member: Member, nodes: frozenset[str] | None) -> Steps[bool]:
        while isinstance(placement := self.trial.choose(member, nodes), Pause):
            moved = yield
            for uid, elsewhere in (moved or {}).items():
                self.done[uid] = (self.done[uid][0], elsewhere)
        if placement is None:
            return False
        self.trial.assume(member, placement)
        self.done[member.uid] = (member, placement)
        return True

    def _make_room(self, member: Member, depth: int, moving: frozenset[Hashable]) -> Steps[bool]:
        """Move members of other kinds, one at a time, until the member fits. What does not help is put back."""
        tried: set[tuple[Hashable, str]] = set()
        for other, placement in reversed(list(self.done.values())):
            spot = (other.kind, placement.node)
            if other.kind == member.kind or other.kind in moving or spot in tried:
                continue
            self.spare -= 1
            if self.spare < 0:
                return False
            tried.add(spot)
            self.moved = True
            self._remove(other)
            if (yield from self._put(member, self.nodes)):
                if (yield from self._put(other, self.nodes)):
                    return True
                if depth > 1 and (yield from self._make_room(other, depth - 1, moving | {member.kind})):
                    return True
                self._remove(member)
            if self.stuck or not (yield from self._put(other, frozenset({placement.node}))):
                # A node admits pods in their order: after those that follow it, the other member is refused.
                self.stuck = True
                return False
        return False

    def _remove(self, member: Member) -> None:
        self.trial.undo(member)
        del self.done[member.uid]

    def _repeat(self) -> Steps[bool]:
        """Decide again in the order that the moves have made: a kubelet admits the pods of a node in the order of their binds."""
        order = [(member, frozenset({placement.node})) for member, placement in self.done.values()]
        self.clear()
        for member, nodes in order:
            if not (yield from self._put(member, nodes)):
                return False
        return True


def decide_group(trial: Trial, group: Group, limits: Limits = LIMITS) -> Placed | Refused:
    """Return the result of ``decide_in_steps``, without interruption."""
    steps = decide_in_steps(trial, group, limits)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: Placed | Refused = end.value
            return answer


def decide_in_steps(trial: Trial, group: Group, limits: Limits = LIMITS) -> Steps[Placed | Refused]:
    """
    Place the members of a group, or return why they cannot be placed. Nothing stays assumed.

    Domains are tried by their free CPU, the fullest first. The first in which every member is placed and aligned is chosen, else the one
    with most members placed, then with most of them aligned. Preferred levels are given up one by one, the narrowest first.
    """
    first: Refused | None = None
    for keys in _level_sets(trial, group.levels):
        if keys:
            answer = yield from _in_domains(trial, group, keys, limits)
        else:
            answer = yield from _attempt(trial, group, None, limits)
        if isinstance(answer, Placed):
            return answer
        first = first or answer
    return first if first is not None else Refused(group.members[0].gang, "", {}, 0)


def _level_sets(trial: Trial, levels: Sequence[TopologyLevel]) -> Iterator[tuple[str, ...]]:
    """All levels, then fewer: preferred ones are given up by how many domains they have, the narrowest first."""
    required = [level.key for level in levels if level.required]
    preferred = sorted(
        (level.key for level in levels if not level.required), key=lambda key: (len(trial.domains((key,))), key)
    )
    for count in range(len(preferred), -1, -1):
        yield (*required, *preferred[:count])


def _in_domains(trial: Trial, group: Group, keys: Sequence[str], limits: Limits) -> Steps[Placed | Refused]:
    domains = sorted(trial.domains(keys), key=lambda domain: (domain.free, domain.name))
    best: tuple[tuple[int, int], Placed] | None = None
    results: list[tuple[DomainResult, Refused]] = []
    members = len(group.members)
    for domain in domains[: limits.domains]:
        answer = yield from _attempt(trial, group, domain.nodes, limits)
        if isinstance(answer, Refused):
            results.append((DomainResult(domain.name, len(answer.beside), members, answer.failed), answer))
            continue
        placements = answer.placements.values()
        aligned = sum(placement.alignment is not Alignment.UNALIGNED for placement in placements)
        found = ((len(placements), aligned), replace(answer, domain=domain.name))
        if found[0] == (members, members):
            return found[1]
        best = found if best is None or found[0] > best[0] else best
    if best is not None:
        return best[1]
    if not results:
        return Refused(group.members[0].gang, "", {}, sum(group.missing.values()))
    results.sort(key=lambda result: -result[0].placed)
    return replace(results[0][1], domains=tuple(result for result, _ in results))


def _attempt(trial: Trial, group: Group, nodes: frozenset[str] | None, limits: Limits) -> Steps[Placed | Refused]:
    """Try orders of the members on these nodes. A member that fits nowhere goes first in the next order."""
    search = _Search(trial, group, nodes, limits.extra_choices, limits)
    orders = _orders(group)
    best: Refused | None = None
    for _ in range(limits.orders):
        order = orders.pop(0)
        failed = yield from search.run(order)
        done = {uid: placement for uid, (_, placement) in search.done.items()}
        search.clear()
        if failed is None and done:
            left = tuple(member.uid for member in group.members if member.uid not in done)
            return Placed(done, left)
        blocker = failed or order[0]
        refused = Refused(blocker.gang, blocker.uid, done, sum(group.missing.values()), nodes)
        best = refused if best is None or len(refused.beside) > len(best.beside) else best
        search.spare -= len(done)
        following = sorted(order, key=lambda member: member.kind != blocker.kind)
        if not orders and failed is not None and following != order:
            orders.append(following)
        if not orders or search.spare < 0:
            break
    if best is None:
        raise AssertionError("a group was decided on without an attempt")
    return replace(best, exhausted=search.spare < 0)


def _orders(group: Group) -> list[list[Member]]:
    """Return two orders: as many of the largest members of each gang as it needs come first, or as many of the smallest."""
    largest = _largest_first(group.members)
    orders = [_needed_first(largest, group.missing), _needed_first(largest[::-1], group.missing)]
    first, second = ([member.kind for member in order] for order in orders)
    return orders[:1] if first == second else orders


def _needed_first(members: Sequence[Member], missing: Mapping[GangKey, int]) -> list[Member]:
    left, needed, others = dict(missing), [], []
    for member in members:
        if left.get(member.gang, 0) > 0:
            left[member.gang] -= 1
            needed.append(member)
        else:
            others.append(member)
    return _largest_first(needed) + _largest_first(others)


def _largest_first(members: Sequence[Member]) -> list[Member]:
    return sorted(members, key=lambda member: tuple(-part for part in member.size))
